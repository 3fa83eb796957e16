"""A pre-training step on random examples, for measuring time and memory."""

import contextlib
import tempfile
from unittest import mock

import numpy as np
import tensorflow as tf

from benchmarks import released_graph
from bert_tf.config import DTYPES
from bert_tf.distribution import hardware, strategies
from bert_tf.distribution.devices import DistributionConfig
from bert_tf.model import heads, layers
from bert_tf.optimization import OptimizerConfig, build_optimizer
from bert_tf.pretraining.model import PretrainingModel
from bert_tf.training.settings import Compilation, Shapes, TrainingConfig
from bert_tf.training.step.trainer import Trainer

PREDICTIONS = 20


def make_batch(config, batch_size, length):
    """Returns a batch of random examples without padding."""
    rng = np.random.default_rng(0)
    return {
        "input_ids": tf.constant(rng.integers(0, config.vocab_size, (batch_size, length)), tf.int32),
        "input_mask": tf.ones([batch_size, length], tf.int32),
        "segment_ids": tf.constant(rng.integers(0, 2, (batch_size, length)), tf.int32),
        "masked_lm_positions": tf.constant(rng.integers(0, length, (batch_size, PREDICTIONS)), tf.int32),
        "masked_lm_ids": tf.constant(rng.integers(0, config.vocab_size, (batch_size, PREDICTIONS)), tf.int32),
        "masked_lm_weights": tf.ones([batch_size, PREDICTIONS]),
        "next_sentence_labels": tf.constant(rng.integers(0, 2, batch_size), tf.int32),
    }


def our_step(config, batch, dtype="float32", **options):
    """Returns a function that runs this project's training steps, always on the same batch."""
    trainer = make_trainer(batch["input_ids"].shape[0], config, dtype, **options)
    return steps_of(trainer, iter(tf.data.Dataset.from_tensors(batch).repeat()))


def steps_of(trainer, batches, shapes=Shapes.ANY):
    """Returns a function that trains for a number of steps."""

    def train(count=1):
        sum(trainer.steps(batches, count, shapes))
        trainer.take_means()

    return train


def make_trainer(batch_size, config, dtype="float32", strategy=None, jit_compile=False, **options):
    """Returns a trainer with a pre-training model and its optimizer."""
    settings = TrainingConfig(
        tempfile.gettempdir(), OptimizerConfig(1e-4, 10000, 100), batch_size, dtype=dtype, **options
    )
    strategy = strategy or strategies.build_strategy(DistributionConfig())
    with strategy.scope():
        model = PretrainingModel(
            config,
            dtype=DTYPES[dtype],
            gradient_checkpointing=settings.gradient_checkpointing,
        )
        optimizer = build_optimizer(settings.optimizer, model.trained_variables)
        compilation = Compilation.STEP if jit_compile else Compilation.NONE
        return Trainer(model, optimizer, settings, strategy, compilation)


@contextlib.contextmanager
def without_products():
    """Context manager: steps traced inside it replace the result of every matrix multiplication by a constant.

    The time of such a step is a lower bound for steps with faster matrix multiplications. On a CPU that emulates
    bfloat16, it is the time of all other operations, as on a CPU with bfloat16 instructions.
    """
    with (
        mock.patch.object(layers, "matmul", _filled_product),
        mock.patch.object(heads, "matmul", _filled_product),
        mock.patch.object(released_graph, "matmul", _filled_product),
        mock.patch.object(hardware, "emulates_bfloat16", lambda: False),
    ):
        yield


def _filled_product(a, b, transpose_b=False):
    """Returns a constant tensor with the shape and type of the matrix product. The gradients are constant too."""

    def filled(shape, number, dtype):
        return tf.fill(shape, tf.cast(tf.reshape(number, [-1])[0], dtype))

    @tf.custom_gradient
    def product(a, b):
        shape = [*a.shape[:-1], b.shape[-2 if transpose_b else -1]]
        return filled(shape, a, a.dtype), lambda up: (filled(a.shape, up, a.dtype), filled(b.shape, up, b.dtype))

    return product(tf.convert_to_tensor(a), tf.convert_to_tensor(b))
