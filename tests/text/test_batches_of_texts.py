import numpy as np
import pytest
import tensorflow as tf

import bert_tf
from bert_tf.sequences import packing
from bert_tf.tasks.original_api import InputExample, convert_single_example
from tests.conftest import assert_refused

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "whale", "##s", "swim", "."]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("\n".join(PIECES) + "\n")
    return bert_tf.Tokenizer(str(path))


def test_batch_is_what_fine_tuning_reads(tokenizer):
    pairs = [("The whales swim.", None), ("the whale", "Whales swim. " * 5), ("", "swim")]
    batch = tokenizer([a if b is None else (a, b) for a, b in pairs], max_length=12, padding="max_length")
    for i, (a, b) in enumerate(pairs):
        features = convert_single_example(0, InputExample("", a, b, "x"), ["x"], 12, tokenizer)
        assert {name: values[i].tolist() for name, values in batch.items()} == {
            name: getattr(features, name) for name in packing.PackedSequence._fields
        }
    assert all(values.dtype == np.int32 for values in batch.values())


@pytest.mark.parametrize(
    ("texts", "second"),
    [
        ([("the", "whale"), ("swim", ".")], None),
        (["the", "swim"], ["whale", "."]),
        (np.array(["the", "swim"]), np.array(["whale", "."])),
    ],
)
def test_ways_to_give_pairs(tokenizer, texts, second):
    assert tokenizer(texts, second)["input_ids"].tolist() == [[2, 5, 3, 6, 3], [2, 8, 3, 9, 3]]
    assert tokenizer(texts, second)["segment_ids"].tolist() == [[0, 0, 0, 1, 1]] * 2


def test_pads_to_the_longest_sequence_and_cuts_at_the_length_of_the_released_models(tokenizer):
    assert tokenizer("whales")["input_ids"].tolist() == [[2, 6, 7, 3]]
    assert tokenizer(("the", "whale"))["input_ids"].tolist() == [[2, 5, 3, 6, 3]]
    assert tokenizer(["the", "whales"])["input_mask"].tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert tokenizer("the whale", max_length=4, truncation=False)["input_ids"].tolist() == [[2, 5, 6, 3]]
    for options in ({}, {"max_length": None, "truncation": "longest_first"}):
        assert tokenizer("the " * 600, **options)["input_ids"].shape == (1, 512)


@pytest.mark.parametrize(
    ("texts", "arguments", "message"),
    [
        ([], {}, "texts is empty"),
        ([("a", "b", "c")], {}, "pair of texts"),
        ([3], {}, "'3'"),
        (["a", "b"], {"text_pair": ["c"]}, "text_pair has 1 texts for 2 first texts"),
        (["the", "the whale swim"], {"max_length": 4, "truncation": False}, "text 1 has more than 4 tokens"),
        ("the whale swim", {"max_length": 4, "truncation": "do_not_truncate"}, "more than 4 tokens, .*'do"),
        ("the", {"truncation": "only_first"}, "truncation is 'only_first'"),
        ("the", {"padding": "longer"}, "padding is 'longer'"),
        ("the", {"max_length": 3}, ">= 4"),
        ("the", {"return_tensors": "pt"}, "return_tensors is 'pt'"),
    ],
)
def test_refuses(tokenizer, texts, arguments, message):
    assert_refused(message, tokenizer, texts, **arguments)


def test_decode(tokenizer):
    ids = tokenizer(["The whales swim.", "the"])["input_ids"]
    assert tokenizer.decode(ids[0]) == "[CLS] the whales swim . [SEP]"
    assert tokenizer.decode(ids[1], skip_special_tokens=True) == "the"
    with pytest.raises(KeyError):
        tokenizer.decode([99])
    assert tokenizer.batch_decode(ids, skip_special_tokens=True)[1] == "the"
    assert_refused(r"shape \[2, 7\] are not one sequence. Use batch_decode", tokenizer.decode, ids)


def test_tensors_of_tensorflow(tokenizer):
    tensors, arrays = (tokenizer(["whales", "the whales"], return_tensors=kind) for kind in ("tf", "np"))
    assert all(tf.is_tensor(tensors[name]) and (tensors[name].numpy() == arrays[name]).all() for name in arrays)
