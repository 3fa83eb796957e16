"""Every file of a run directory or a model is checked when it is read. Each kind of damage gives one message."""

import json
import os

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import checkpoints
from bert_tf.checkpoints import class_names, run_directory, run_record, saver
from bert_tf.checkpoints.reading import CheckpointSource
from bert_tf.config import BertConfig
from bert_tf.finetuning.trials import TrialTable
from bert_tf.sequences.example_format import Metadata
from bert_tf.text.hf_tokenizer import read_tokenizer_config
from bert_tf.text.vocabulary import vocabulary_text
from bert_tf.training import log
from tests.conftest import assert_refused

DEEP = "[" * 5000 + "]" * 5000
LONG = '{"a": ' + "7" * 5000 + "}"


def hf_classes(path):
    return class_names.recorded_classes(CheckpointSource(path, "hf", {}, lambda name: None))


def metadata(**changes):
    features = ["input_ids", "input_mask", "segment_ids", "next_sentence_labels"]
    values = {"records": 2, "file_size": 99, "max_seq_length": 8, "max_predictions_per_seq": 2, "vocab_sha256": ""}
    return json.dumps(values | {"settings": {}, "features": features, "counts": {}, "format_version": 1} | changes)


READERS = {
    "bert_config.json": BertConfig.from_json_file,
    "run.json": lambda path: run_record.recorded(os.path.dirname(path)),
    "labels.json": lambda path: run_directory.recorded_labels(os.path.dirname(path)),
    "tokenizer_config.json": read_tokenizer_config,
    "tokenizer.json": vocabulary_text,
    "config.json": hf_classes,
    "model.safetensors.index.json": checkpoints.open_checkpoint,
    "metrics.jsonl": lambda path: log.read_metrics(os.path.dirname(path)),
    "trials.jsonl": lambda path: TrialTable(os.path.dirname(path), "accuracy").rows(),
    "x.meta.json": lambda path: Metadata.read(path.removesuffix(".meta.json")),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("damage", [DEEP, LONG, "[[3]]", "\0\0", b"\xff", "", '{"a": 1, "a": 2}'], ids=range(7))
def test_damage_is_one_message(name, damage, write):
    damage = damage.encode() if isinstance(damage, str) else damage
    lines = name.endswith(".jsonl")
    path = write(name, damage + b'\n{"kind": "eval"}\n' if lines else damage)
    if name == "metrics.jsonl" and not damage:
        path = write(name, b"\n{}\n")
    assert_refused(rf"\A.*{name}\S* .*\Z", READERS[name], path)  # one line


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("run.json", "{}", "resume_settings"),
        ("run.json", '{"resume_settings": 8}', "at resume_settings: .*object"),
        ("labels.json", "[1, 2]", r"at \[0\]: .*str"),
        ("config.json", '{"id2label": ["a"]}', "at id2label: .*object"),
        ("config.json", '{"id2label": {"x": "a"}}', "at id2label"),
        ("bert_config.json", '{"vocab_size": 9, "layer_norm_eps": 1e999}', "layer_norm_eps"),
        ("bert_config.json", '{"vocab_size": 1000000000000}', "vocab_size: .*<= "),
        ("bert_config.json", '{"vocab_size": 999999999, "hidden_size": 12000}', r"would have 1.2e\+13 weights"),
        ("bert_config.json", '{"vocab_size": 9, "model_type": "bert", "hidden_act": ["gelu"]}', "at hidden_act"),
        ("x.meta.json", metadata(records=-1), "at records"),
        ("x.meta.json", metadata(records="2"), "at records: .*int"),
        ("x.meta.json", metadata(settings=None), "at settings: .*object"),
        ("x.meta.json", metadata(features=[]), "at features"),
        ("x.meta.json", metadata(format_version=2), "not a metadata file of format 1"),
        ("trials.jsonl", '{"trial": "a", "settings": "b", "accuracy": NaN}\n', "the trial a has no accuracy"),
    ],
)  # fmt: skip
def test_other_content_is_named(name, text, message, write):
    assert_refused(message, READERS[name], write(name, text))


def test_a_metadata_file_that_fits_is_read(write):
    assert Metadata.read(write("x.meta.json", metadata()).removesuffix(".meta.json")).records == 2


def test_weights_that_are_not_finite_are_named(tmp_path):
    path = str(tmp_path / "x")
    saver.write_checkpoint(path, {"w": np.array([1.0, np.nan, np.inf], np.float32)})
    variable = tf.Variable(tf.zeros(3))
    assert_refused(f"{path}: w: 2 values are not finite", checkpoints.restore, {"w": variable}, path)
    for values in (np.arange(3), np.ones(3, np.complex64)):
        saver.write_checkpoint(path, {"w": values})
        assert_refused(f"{path}: w has values of type", checkpoints.restore, {"w": variable}, path)
    assert variable.numpy().tolist() == [0, 0, 0]
