import json

import numpy as np
import pytest

from bert_tf import features
from bert_tf.config import BertConfig
from bert_tf.distribution.devices import DistributionConfig
from bert_tf.distribution.strategies import build_strategy
from bert_tf.text import FullTokenizer
from tests.conftest import assert_close, assert_refused, golden_json, golden_lines, golden_path


@pytest.mark.golden
@pytest.mark.parametrize(("strategy", "batch_size"), [("one_device", 32), ("mirrored", 3)])
def test_activations_equal_the_releases(tmp_path, strategy, batch_size):
    settings = golden_json("extract_features/settings.json")
    config = BertConfig.from_json_file(str(golden_path(settings["config"])))
    checkpoint = str(golden_path("model") / settings["checkpoint"].removeprefix("model/"))
    strategy = build_strategy(DistributionConfig(strategy))
    encoder = features.FrozenEncoder(config, checkpoint, settings["layers"], "--layers", strategy)
    tokenizer = FullTokenizer(str(golden_path(settings["vocab"])), settings["do_lower_case"])
    examples = features.read_examples(str(golden_path("extract_features/input.txt")))
    sizes = {"max_seq_length": settings["max_seq_length"], "batch_size": batch_size}
    lines = features.extract(encoder, tokenizer, examples, **sizes)
    path = tmp_path / "output.jsonl"
    features.write_features(str(path), lines, len(examples))
    ours = [json.loads(line) for line in path.read_text().splitlines()]
    expected = golden_lines("extract_features/output.jsonl.gz")
    assert len(ours) == len(expected)
    for line, reference in zip(ours, expected, strict=True):
        assert line["linex_index"] == reference["linex_index"]
        assert [f["token"] for f in line["features"]] == [f["token"] for f in reference["features"]]
        for token, expected_token in zip(line["features"], reference["features"], strict=True):
            assert [x["index"] for x in token["layers"]] == [x["index"] for x in expected_token["layers"]]
            values = np.array([x["values"] for x in token["layers"]])
            assert_close(values, [x["values"] for x in expected_token["layers"]], 5e-5)


def test_texts_and_pairs_are_read(write):
    path = write("input.txt", " a b \r\nc ||| d\r\n\r\nno pair|||here\n")
    assert features.read_examples(path) == [("a b", None), ("c", "d"), ("", None), ("no pair|||here", None)]


def test_unknown_layers_are_refused():
    assert features.layer_numbers("-1,0,-4", 4) == [-1, 0, -4]
    assert_refused("no layer -5 in a model of 4 layers", features.layer_numbers, "-1,-5", 4)
    assert_refused("Use integers", features.layer_numbers, "-1,all", 4)
