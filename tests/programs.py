"""Runs the programs in separate processes, like a user, on tiny data; see `command_server`."""

import subprocess

import numpy as np
import tensorflow as tf

from bert_tf.sequences.example_format import pretraining_features
from tests import command_server
from tests.conftest import ROOT, tiny_config

LENGTH, PREDICTIONS = 12, 3
PIECES = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *"abcdefghijklmnopqrstuvwxyz",
    *(f"##{c}" for c in "abcdefghij"),
]


def write_model_files(directory, **changes):
    """Writes a tiny config and a vocabulary with the right size; returns their paths."""
    (directory / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    config = directory / "config.json"
    sizes = {"vocab_size": len(PIECES), "num_hidden_layers": 1} | changes
    config.write_text(tiny_config(**sizes).to_json_string())
    return str(config), str(directory / "vocab.txt")


def serialize(features, values):
    """Returns a serialized `tf.train.Example`. Equal values give equal bytes."""
    example = tf.train.Example()
    for feature in features:
        entry = example.features.feature[feature.name]
        (entry.float_list if feature.is_float else entry.int64_list).value.extend(values[feature.name])
    return example.SerializeToString(deterministic=True)


def write_pretraining_data(path, records=40, seed=0, length=LENGTH):
    """Writes random pre-training examples; returns the path."""
    rng = np.random.default_rng(seed)
    features = pretraining_features(length, PREDICTIONS)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for _ in range(records):
            values = {
                "input_ids": rng.integers(5, len(PIECES), length).tolist(),
                "input_mask": [1] * length,
                "segment_ids": [0] * 6 + [1] * (length - 6),
                "masked_lm_positions": rng.permutation(length)[:PREDICTIONS].tolist(),
                "masked_lm_ids": rng.integers(5, len(PIECES), PREDICTIONS).tolist(),
                "masked_lm_weights": [1.0, 1.0, float(rng.integers(2))],
                "next_sentence_labels": [int(rng.integers(2))],
            }
            writer.write(serialize(features, values))
    return str(path)


def start(*command, environment=None, server=command_server.running):
    """Starts a program with a command line."""
    return subprocess.Popen(
        [server().python, *map(str, command)],
        cwd=ROOT,
        env={**server().environment, **(environment or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(*command, expect=0, typed="", **options):
    """Runs a program to its end, checks its exit status, and returns its output."""
    process = start(*command, **options)
    output, _ = process.communicate(typed, timeout=1000)
    assert process.returncode == expect, output[-3000:]
    return output
