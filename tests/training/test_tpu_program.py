"""Searches XLA's version of the training step for operations that a TPU does not support. No TPU is needed."""

import re

import tensorflow as tf

from bert_tf.pretraining.model import PretrainingModel
from bert_tf.runtime import distribution
from bert_tf.runtime.distribution import DistributionConfig, build_strategy
from bert_tf.training.contract import DTYPES
from bert_tf.training.loop import Trainer
from tests.conftest import tiny_config
from tests.training.test_training import batch_of, config_for

# Operations that XLA compiles for every kind of device. Others call code outside the compiled program (custom-call,
# infeed, outfeed, send, recv) or draw random numbers without a seed (rng).
PORTABLE = {
    name
    for names in (
        "add and bitcast-convert broadcast call clamp compare concatenate conditional constant convert copy divide",
        "dot dynamic-slice dynamic-update-slice exponential exponential-minus-one gather get-tuple-element iota",
        "is-finite log log-plus-one logistic maximum minimum multiply negate not or pad parameter power reduce",
        "reshape rng-bit-generator rsqrt scatter select shift-left shift-right-arithmetic shift-right-logical",
        "slice sqrt subtract tanh transpose tuple while xor",
    )
    for name in names.split()
}


def compiled_step(**settings):
    """XLA's text of the function that the training loop runs on each replica."""
    config = config_for("unused", **settings)
    strategy = build_strategy(DistributionConfig())
    with strategy.scope():
        model = PretrainingModel(
            tiny_config(num_hidden_layers=1), dtype=DTYPES[config.dtype], use_one_hot_embeddings=True
        )
        trainer = Trainer(model, config, strategy)
    step = tf.function(trainer.replica_step, jit_compile=True, autograph=False)
    batch = {name: tf.constant(values) for name, values in batch_of(0).items()}
    return step.experimental_get_compiler_ir(batch)(stage="hlo")


def test_step_contains_only_operations_that_a_tpu_supports(monkeypatch):
    monkeypatch.setattr(distribution, "emulates_bfloat16", lambda: False)  # on every machine that runs the test
    program = compiled_step(dtype="bfloat16")
    operations = set(re.findall(r" = (?:\([^=]*?\)|\S+) ([a-z][a-z0-9-]*)\(", program))
    types = set(re.findall(r"\b(pred|[a-z]+\d+\w*)\[", program))
    assert {"dot", "rng-bit-generator", "tanh"} <= operations  # the pattern finds operations
    assert operations <= PORTABLE
    assert types <= {"bf16", "f32", "pred", "s32", "s64", "u16", "u32", "u64"}  # no float64, no complex numbers
    assert not re.search(r"\[[^\]]*<=", program), "a dimension isn't static"
    assert not re.search(r"f32\[[^\]]*\]\{[^}]*\} dot\(bf16", program)  # bfloat16 stays bfloat16
