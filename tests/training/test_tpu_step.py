"""The training step for TPUs computes the same numbers as the training step for CPUs."""

import contextlib
import functools
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from benchmarks import compiled_step, traced_step
from benchmarks.traced_step import OneCore
from bert_tf.config import DTYPES
from bert_tf.distribution.devices import DistributionConfig
from bert_tf.distribution.strategies import build_strategy
from bert_tf.optimization import OptimizerConfig, build_optimizer
from bert_tf.pretraining.model import PretrainingModel
from bert_tf.training.settings import Compilation
from tests import conftest
from tests.conftest import assert_close, loss_and_gradients, tiny_config, without_dropout
from tests.training.test_training import batch_of, config_for, with_nan_at

STRATEGIES = (lambda: build_strategy(DistributionConfig()), OneCore)


def trainer_of(strategy, config, *options):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = PretrainingModel(without_dropout(tiny_config(num_hidden_layers=1)), dtype=DTYPES[config.dtype])
    return conftest.trainer_of(model, config, strategy, *options)


def values_of(trainer):
    return {name: variable.numpy() for name, variable in trainer.state(("skipped_steps", "nonfinite_steps")).items()}


@pytest.mark.eager
@pytest.mark.plain
@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        ({}, "float32"),
        ({"clip_norm": 0.01, "bias_correction": True}, "bfloat16"),
        ({"clip_norm": math.inf, "optimizer": "lamb"}, "float32"),
        ({"clip_norm": 0.01, "clip_gradients": "per_replica"}, "float16"),
        ({"clip_norm": math.inf, "clip_gradients": "per_replica"}, "float32"),
    ],
)
def test_steps_change_the_same_weights_and_a_bad_one_changes_none(options, dtype):
    optimizer = OptimizerConfig(1e-2, 100, epsilon=0.1, **options)
    config = config_for("unused", optimizer=optimizer, dtype=dtype, max_nonfinite_steps=1)
    states = []
    for make in STRATEGIES:
        trainer = trainer_of(make(), config)
        batches = iter(with_nan_at(1)(0))
        states.append([values_of(trainer)])
        for _ in range(3):
            assert sum(trainer.steps(batches, 1)) == 1
            states[-1].append(values_of(trainer))
    for at_cpu, at_tpu in zip(*states, strict=True):
        assert at_cpu.keys() == at_tpu.keys()
        for name, expected in at_cpu.items():
            assert_close(at_tpu[name], expected, 1e-6 if dtype == "float32" else 1e-3, name)
    for before, bad, after in (state[1:] for state in states):
        counts = {"global_step", "skipped_steps", "nonfinite_steps", "loss_scale/good_steps", "loss_scale/scale"}
        assert bad["skipped_steps"] == bad["nonfinite_steps"] == 1
        for name in before.keys() - counts:
            np.testing.assert_array_equal(bad[name], before[name], name)
        name = "bert/embeddings/word_embeddings"
        assert (bad[name] != after[name]).any()


@pytest.mark.parametrize("clip_gradients", ["global", "per_replica"])
def test_a_gpu_changes_the_same_weights(clip_gradients):
    optimizer = OptimizerConfig(1e-2, 100, epsilon=0.1, clip_norm=0.5, clip_gradients=clip_gradients)
    config = config_for("unused", optimizer=optimizer, max_nonfinite_steps=1)
    states = []
    for platform, *options in (("CPU",), ("GPU", Compilation.STEP)):
        with traced_step.assumed("GPU") if platform == "GPU" else contextlib.nullcontext():
            trainer = trainer_of(build_strategy(DistributionConfig()), config, *options)
            assert sum(trainer.steps(iter(with_nan_at(1)(0)), 3)) == 3
        states.append(values_of(trainer))
    for name, expected in states[0].items():
        assert_close(states[1][name], expected, 1e-5, name)


@pytest.mark.parametrize("size", [0.0, 0.3, 7.0])
def test_clipping_without_a_branch_gives_the_same_bits(size):
    gradient = size * tf.random.stateless_normal([5, 3], [1, 2])
    found = []
    for make in STRATEGIES:
        with make().scope():
            config, variable = OptimizerConfig(0.1, 10, weight_decay_rate=0.0), keras.Variable(tf.ones([5, 3]))
            optimizer = build_optimizer(config, [variable])
            optimizer.apply([gradient], tf.linalg.global_norm([gradient]))
            found.append([x.numpy() for x in (variable.value, *optimizer.means, *optimizer.squared_means)])
    for expected, clipped in zip(*found, strict=True):
        np.testing.assert_array_equal(clipped, expected)


@pytest.mark.parametrize("only_blocks", [False, True])
def test_a_gpu_computes_the_same_loss_and_gradients(only_blocks):
    batch = {name: tf.constant(x) for name, x in batch_of(0).items()}
    keras.utils.set_random_seed(1)
    model = PretrainingModel(without_dropout(tiny_config(num_hidden_layers=1)), jit_compile=only_blocks)
    compute = functools.partial(loss_and_gradients, model)
    loss, _, gradients = compute(batch)
    with traced_step.assumed("GPU"):
        compiled = tf.function(compute, autograph=False, jit_compile=not only_blocks or None)(batch)
    assert_close(compiled[0], loss, 1e-6)
    for gradient, expected in zip(compiled[2], gradients, strict=True):
        assert_close(gradient, expected, 1e-5)


def test_recomputed_gradients_are_the_same_and_xla_computes_the_blocks_twice():
    batch = {name: tf.constant(x) for name, x in batch_of(0).items()}
    results, exponentials, strategy = [], [], OneCore()

    def in_replica(function, batch):
        return strategy.run(function, (batch,))

    for recompute in (False, True):
        keras.utils.set_random_seed(1)
        with strategy.scope():
            model = PretrainingModel(tiny_config(num_hidden_layers=1), gradient_checkpointing=recompute)  # with dropout
        compute = functools.partial(in_replica, functools.partial(loss_and_gradients, model))
        compiled = tf.function(compute, autograph=False, jit_compile=True)
        results.append(compiled(batch))
        program = compiled.experimental_get_compiler_ir(batch)(stage="optimized_hlo")
        exponentials.append(program.count(" exponential("))
    (loss, _, gradients), (again, _, recomputed) = results
    assert_close(again, loss, 1e-6)
    for gradient, expected in zip(recomputed, gradients, strict=True):
        assert_close(gradient, expected, 1e-6)
    assert exponentials[1] - exponentials[0] == 1  # the softmax of the block


@pytest.mark.parametrize(("platform", "task"), [("GPU", "squad"), *(("TPU", task) for task in traced_step.TASKS)])
def test_the_compiler_gets_the_step_and_the_lines_of_its_operations(platform, task):
    config = tiny_config(max_position_embeddings=16, num_hidden_layers=1)
    parts = 2 if task == "pretraining" else 1
    step = traced_step.trace_step(platform, task, config, 4, 16, dtype="bfloat16", gradient_accumulation_steps=parts)
    assert list(step.programs) == (["step"] if platform == "TPU" else ["gradients", "update"])
    assert all(program.startswith(b"ML\xefR") for program in step.programs.values())
    assert step.flops > step.parameters > 0
    if platform == "GPU":
        names = [
            name for name, lines in step.sources.items() if "BatchMatMulV3" in name and "model/fusion.py:" in lines
        ]
        assert names
        return
    names = [name for name in step.sources if "gradient_tape" in name and "query" in name and name.endswith("MatMul_1")]
    for name in names:
        assert "gradient of model/base_layers.py:" in compiled_step.source_of(name, step.sources)
    assert len(names) == parts  # in the first part of the batch and in the loop over the others
