"""Searches XLA's version of the training step for operations that a TPU does not support. No TPU is needed."""

import re

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.distribution import strategies
from bert_tf.distribution.devices import DistributionConfig
from bert_tf.distribution.strategies import build_strategy
from bert_tf.finetuning.models import ClassifierModel, SpanModel
from bert_tf.pretraining.model import PretrainingModel
from bert_tf.training.loop import Trainer
from bert_tf.training.settings import DTYPES
from tests.conftest import tiny_config
from tests.training.test_training import config_for

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


def zeros(**shapes):
    return {name: np.zeros(shape, np.int32) for name, shape in shapes.items()}


def pretraining(length, options):
    """A model, and a batch of 4 sequences of a length."""
    batch = zeros(**dict.fromkeys(("input_ids", "input_mask", "segment_ids"), (4, length)))
    batch |= zeros(masked_lm_positions=(4, 3), masked_lm_ids=(4, 3), next_sentence_labels=4)
    return PretrainingModel(config_of(length), **options), batch | {"masked_lm_weights": np.ones((4, 3), np.float32)}


def classification(length, options):
    batch = zeros(**dict.fromkeys(("input_ids", "input_mask", "segment_ids"), (4, length)), label_ids=4)
    return ClassifierModel(config_of(length), 3, **options), batch | {"is_real_example": np.ones(4, np.int32)}


def answers(length, options):
    batch = zeros(**dict.fromkeys(("input_ids", "input_mask", "segment_ids"), (4, length)))
    return SpanModel(config_of(length), **options), batch | zeros(start_positions=4, end_positions=4)


def config_of(length):
    return tiny_config(num_hidden_layers=1, max_position_embeddings=length)


def compiled_step(make, length, accumulation=1, **settings):
    """XLA's text of the function that the training loop runs on each replica."""
    config = config_for("unused", dtype="bfloat16", gradient_accumulation_steps=accumulation, **settings)
    with build_strategy(DistributionConfig()).scope():
        options = {"dtype": DTYPES[config.dtype], "use_one_hot_embeddings": True}
        model, batch = make(length, options | {"recompute_gradients": config.recompute_gradients})
        trainer = Trainer(model, config, tf.distribute.get_strategy())
    parts = trainer.config.gradient_accumulation_steps
    step = tf.function(lambda batch: trainer.replica_step(batch, parts), jit_compile=True, autograph=False)
    program = step.experimental_get_compiler_ir({name: tf.constant(x) for name, x in batch.items()})(stage="hlo")
    return re.sub(r"/\*.*?\*/", "", program)  # numbers in the types of long tuples


@pytest.mark.parametrize(
    ("make", "length", "settings"),
    [
        (pretraining, 16, {}),
        (pretraining, 512, {"accumulation": 2, "recompute_gradients": True}),
        (classification, 512, {"accumulation": 2, "recompute_gradients": True}),
        (answers, 512, {"accumulation": 2, "recompute_gradients": True}),
    ],
)
def test_step_contains_only_operations_that_a_tpu_supports(make, length, settings, monkeypatch):
    # On every machine that runs the test, the layers take the branch of TPUs, which compile whole steps.
    monkeypatch.setattr(strategies, "emulates_bfloat16", lambda: False)
    monkeypatch.setattr(strategies, "compiles_parts", lambda: False)
    program = compiled_step(make, length, **settings)
    operations = set(re.findall(r" = (?:\([^=]*?\)|\S+) ([a-z][a-z0-9-]*)\(", program))
    types = set(re.findall(r"\b(pred|[a-z]+\d+\w*)\[", program))
    assert {"dot", "rng-bit-generator", "tanh"} <= operations  # the pattern finds operations
    assert ("while" in operations) == ("accumulation" in settings)
    assert operations <= PORTABLE
    assert types <= {"bf16", "f32", "pred", "s32", "s64", "u16", "u32", "u64"}  # no float64, no complex numbers
    assert not re.search(r"\[[^\]]*<=", program), "a dimension isn't static"
    assert not re.search(r"f32\[[^\]]*\]\{[^}]*\} dot\(bf16", program)  # bfloat16 stays bfloat16
    # Dropout draws its bits from the device's generator. This is a constant of the mixing that is for CPUs.
    assert str(0x85EBCA6B) not in program
