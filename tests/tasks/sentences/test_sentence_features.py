import dataclasses

import numpy as np
import pytest

from bert_tf.runtime.files import InputError
from bert_tf.sequences.text_packer import TextPacker
from bert_tf.tasks.data_config import DataConfig
from bert_tf.tasks.original_api import InputExample, convert_single_example
from bert_tf.tasks.registry import build_task
from bert_tf.tasks.sentences.examples import check_label
from bert_tf.text import FullTokenizer
from tests.conftest import assert_refused, golden_json, golden_lines, golden_path


@pytest.mark.parametrize("name", sorted(golden_json("classifier/index.json")["cases"]))
def test_features_are_the_same_as_in_the_release(name):
    case = golden_json("classifier/index.json")["cases"][name]
    data = golden_json("classifier/examples.json")[case["task"]]
    tokenizer = FullTokenizer(str(golden_path("tokenization/vocab.txt")), case["do_lower_case"])
    expected = golden_lines(f"classifier/features/{name}.jsonl.gz")
    assert len(expected) == len(data["rows"])
    for i, (row, features) in enumerate(zip(data["rows"], expected, strict=True)):
        if row.get("padding_input_example"):
            continue
        example = InputExample(row["guid"], row["text_a"], row["text_b"], row["label"])
        ours = convert_single_example(i, example, data["labels"], case["max_seq_length"], tokenizer)
        features.pop("guid")
        assert dataclasses.asdict(ours) == features


def test_whole_data_sets_give_the_same_features(tokenizer):
    rows = [("a b c", None), ("a", "b c c c c c c"), ("a b a b a b", ""), ("", None), ("a b", "c")]
    examples = [InputExample(str(i), a, b, "xy"[i % 2]) for i, (a, b) in enumerate(rows)]
    task = build_task(DataConfig("text", ".", labels=["x", "y"]), "", do_train=True)
    features = task.featurize(examples, TextPacker(tokenizer, 7))
    batch = features.batch(np.arange(5), 7)
    for i, example in enumerate(examples):
        single = convert_single_example(i, example, ["x", "y"], 7, tokenizer)
        for name in ("input_ids", "input_mask", "segment_ids"):
            assert batch[name][i].tolist() == getattr(single, name)
        assert batch["label_ids"][i] == single.label_id
    assert features.num_truncated == 2


def test_regression_labels_are_numbers(tokenizer):
    task = build_task(DataConfig("text", ".", problem="regression"), "", do_train=True)
    examples = [InputExample("1", "a", "b", label) for label in ("3.5", "-3e1", 3.5)]
    features = task.featurize(examples, TextPacker(tokenizer, 8))
    assert features.per_example["label_ids"].tolist() == [3.5, -30.0, 3.5]
    with pytest.raises(InputError, match="file, line 3: the score 'high' is not a number"):
        check_label(InputExample("1", "a", "b", "high"), "file, line 3", None)
    for label in ("nan", float("inf"), True, None, 10**400):
        assert_refused("not a number", check_label, InputExample("1", "a", "b", label), "file, line 3", None)


def test_unknown_labels_are_reported(tokenizer):
    with pytest.raises(InputError, match="example 4: the label 'z' is unknown"):
        convert_single_example(4, InputExample("dev-5", "a", None, "z"), ["x", "y"], 8, tokenizer)
