import contextlib
import errno
import functools
import os
import shutil
import signal
import threading
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from benchmarks.local_cluster import worker_configs
from bert_tf import checkpoints
from bert_tf.checkpoints import saver
from bert_tf.config import DTYPES
from bert_tf.distribution.devices import DistributionConfig
from bert_tf.distribution.strategies import build_strategy
from bert_tf.distribution.workers import WorkersError
from bert_tf.optimization import OptimizerConfig
from bert_tf.pretraining.model import PretrainingModel
from bert_tf.runtime import signals
from bert_tf.runtime.files import InputError
from bert_tf.runtime.messages import say
from bert_tf.training import log, loop, resume
from bert_tf.training.errors import explain_data, explain_errors
from bert_tf.training.hooks import PeriodicEvaluation
from bert_tf.training.interface import TrainingData
from bert_tf.training.settings import Compilation, TrainingConfig
from bert_tf.training.step.metric_means import MetricMeans
from tests.conftest import (
    assert_close,
    assert_refused,
    eagerly,
    loss_and_gradients,
    needed_operations,
    tiny_config,
    train_steps,
    trainer_of,
    without_dropout,
)

pytestmark = [pytest.mark.eager, pytest.mark.plain]
BATCH, LENGTH, PREDICTIONS = 8, 10, 3


def batch_of(step):
    rng = np.random.default_rng(step)
    return {
        "input_ids": rng.integers(1, 41, (BATCH, LENGTH)).astype(np.int32),
        "input_mask": np.ones((BATCH, LENGTH), np.int32),
        "segment_ids": rng.integers(0, 2, (BATCH, LENGTH)).astype(np.int32),
        "masked_lm_positions": rng.integers(0, LENGTH, (BATCH, PREDICTIONS)).astype(np.int32),
        "masked_lm_ids": rng.integers(0, 41, (BATCH, PREDICTIONS)).astype(np.int32),
        "masked_lm_weights": (rng.random((BATCH, PREDICTIONS)) < 0.6).astype(np.float32),
        "next_sentence_labels": rng.integers(0, 2, BATCH).astype(np.int32),
    }


def dataset_from_step(start, context=None, steps=50, change=None):
    size = BATCH if context is None else context.get_per_replica_batch_size(BATCH)

    def parts():
        for step in range(start, steps):
            batch = batch_of(step) if change is None else change(step, batch_of(step))
            for i in range(0, BATCH, size):
                yield {name: x[i : i + size] for name, x in batch.items()}

    signature = {k: tf.TensorSpec([size, *x.shape[1:]], x.dtype) for k, x in batch_of(0).items()}
    return tf.data.Dataset.from_generator(parts, output_signature=signature)


def config_for(directory, steps=6, **changes):
    options = {"save_checkpoints_steps": 2, "log_steps": 2, "seed": 5} | changes
    optimizer = options.pop("optimizer", OptimizerConfig(1e-3, steps, 2))
    return TrainingConfig(str(directory), optimizer, BATCH, **options)


def model_for(config, bert_config=None, strategy=None):
    keras.utils.set_random_seed(config.seed)
    with (strategy or build_strategy(DistributionConfig())).scope():
        return PretrainingModel(bert_config or tiny_config(num_hidden_layers=1), dtype=DTYPES[config.dtype])


def trainer_for(config):
    return trainer_of(model_for(config), config, build_strategy(DistributionConfig()))


def gradients_of(options):
    """Returns the loss, gradients and operations of an encoder with the given options, for one batch with dropout."""
    keras.utils.set_random_seed(3)
    model = PretrainingModel(tiny_config(), **options)
    compute = tf.function(lambda batch: loss_and_gradients(model, batch), autograph=False)
    batch = {name: tf.constant(x) for name, x in batch_of(0).items()}
    return *compute(batch), needed_operations(compute, batch)


@pytest.mark.graph
@pytest.mark.kernels
def test_recomputed_gradients_are_the_same():
    loss, _, gradients, operations = gradients_of({})
    again, _, recomputed, more_operations = gradients_of({"gradient_checkpointing": True})
    assert_close(again, loss, 0)
    for gradient, expected in zip(recomputed, gradients, strict=True):
        assert_close(gradient, expected, 1e-6)
    softmaxes = [sum(name.endswith("Softmax") for name in found) for found in (operations, more_operations)]
    assert softmaxes == [2, 4]


def values_of(model):
    return {variable.path: variable.numpy() for variable in model.variables}


def run(config, bert_config=None, strategy=None, *, data=dataset_from_step, describe=str, hooks=()):
    strategy = strategy or build_strategy(DistributionConfig())
    model = model_for(config, bert_config, strategy)
    compilation = Compilation.STEP if config.jit_compile == "yes" else Compilation.NONE
    start = {"init_checkpoint": None, "new_variables": "", "compilation": compilation, "record": lambda: None}
    run = types.SimpleNamespace(model=model, training_config=config, strategy=strategy, **start)
    result = loop.train(run, TrainingData(data, describe=describe), hooks)
    return values_of(model), result


class Killed(Exception):
    """Ends a run while it reads data, as if the run were killed."""


def killed_at(last):
    """Returns the data of a run that is killed before a step."""

    def change(step, batch):
        if step == last:
            raise Killed
        return batch

    return functools.partial(dataset_from_step, change=change)


def assert_same(ours, expected, atol=0.0):
    assert ours.keys() == expected.keys()
    for name, value in expected.items():
        assert_close(ours[name], value, atol, name)


def test_resumed_run_equals_the_uninterrupted_one_bit_for_bit(tmp_path, capsys):
    uninterrupted, _ = run(config_for(tmp_path / "a"))

    with pytest.raises(tf.errors.OpError, match="Killed"):
        run(config_for(tmp_path / "b"), data=killed_at(5))
    assert saver.latest_checkpoint(str(tmp_path / "b")).endswith("model.ckpt-4")
    resumed, _ = run(config_for(tmp_path / "b"))
    assert_same(resumed, uninterrupted)
    ours, expected = (checkpoints.open_checkpoint(str(tmp_path / name)) for name in "ab")
    assert_same({n: ours.read(n) for n in ours.shapes}, {n: expected.read(n) for n in expected.shapes})
    damaged = tmp_path / "b" / "model.ckpt-6.data-00000-of-00001"
    damaged.write_bytes(damaged.read_bytes()[:-100])
    again, _ = run(config_for(tmp_path / "b"))
    assert "model.ckpt-4 is used" in capsys.readouterr().err
    assert_same(again, uninterrupted)
    assert saver.latest_checkpoint(str(tmp_path / "b")).endswith("model.ckpt-6")
    assert [line["step"] for line in log.read_metrics(str(tmp_path / "b"))] == [2, 4, 6]


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    step_4_is_done, write_log, save = threading.Event(), log.MetricsLog.write, tf.raw_ops.SaveV2

    def write_line(self, kind, step, values):
        if step == 4:
            step_4_is_done.set()
        write_log(self, kind, step, values)

    def save_after_step_4(**options):
        assert step_4_is_done.wait(60)
        if options["prefix"].endswith("-6"):
            raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")
        save(**options)

    monkeypatch.setattr(log.MetricsLog, "write", write_line)
    monkeypatch.setattr(tf.raw_ops, "SaveV2", save_after_step_4)
    assert_refused(r"step 6 can't be written.*No space left", run, config_for(tmp_path))
    assert int(checkpoints.open_checkpoint(str(tmp_path)).read("global_step")) == 4


def test_own_checkpoint_is_preferred_to_init_checkpoint(tmp_path):
    config = config_for(tmp_path / "run", steps=2)
    other = PretrainingModel(tiny_config(num_hidden_layers=1))
    init = str(tmp_path / "init" / "bert_model.ckpt")
    saver.write_checkpoint(init, checkpoints.named_variables(other.variables))
    trainer = trainer_for(config)
    resume.restore_or_initialize(trainer.model, trainer.state, config.output_dir, init)
    name = "bert/pooler/dense/kernel"
    assert_close(trainer.state()[name].numpy(), checkpoints.named_variables(other.variables)[name].numpy(), 0)
    trained, _ = run(config)
    assert run(config)[1] == {}  # the run is complete
    resume.restore_or_initialize(trainer.model, trainer.state, config.output_dir, init)
    assert_close(trainer.state()[name].numpy(), trained[name], 0)
    assert trainer.step == 2


THREE_STEPS = {"steps": 3, "save_checkpoints_steps": 3, "log_steps": 3}


@pytest.fixture(scope="module")
def one_device(tmp_path_factory):
    """Returns the variables and metrics of a run on one device."""
    with eagerly():
        config = config_for(tmp_path_factory.mktemp("run"), **THREE_STEPS)
        return run(config, without_dropout(tiny_config(num_hidden_layers=1)))


@pytest.mark.parametrize(
    ("changes", "strategy_name", "atol"),
    [
        ({"gradient_accumulation_steps": 4}, "one_device", 1e-5),
        pytest.param({}, "mirrored", 1e-5, marks=pytest.mark.graph),
        # XLA draws different random numbers for dropout.
        pytest.param({"jit_compile": "yes"}, "mirrored", 2e-5, marks=pytest.mark.graph),
        pytest.param(
            {"jit_compile": "yes", "gradient_accumulation_steps": 2}, "one_device", 2e-5, marks=pytest.mark.graph
        ),
    ],
)
def test_parts_replicas_and_xla_give_what_one_device_gives(one_device, tmp_path, changes, strategy_name, atol):
    expected, metrics = one_device
    strategy = build_strategy(DistributionConfig(strategy_name))
    assert strategy.num_replicas_in_sync == (2 if strategy_name == "mirrored" else 1)
    found, found_metrics = run(
        config_for(tmp_path, **THREE_STEPS, **changes), without_dropout(tiny_config(num_hidden_layers=1)), strategy
    )
    assert_same(found, expected, atol)
    for name in metrics.keys() - {"sequences_per_second", "tokens_per_second"}:
        assert_close(found_metrics[name], metrics[name], atol, name)


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ({"dtype": "float16"}, {}, "0 randomly initialised; 2 checkpoint tensors unused (training state)"),
        ({}, {"dtype": "float16"}, "2 randomly initialised (loss_scale/scale, loss_scale/good_steps); 0 checkpoint"),
        ({"max_nonfinite_steps": 1}, {"dtype": "bfloat16"}, "0 randomly initialised; 0 checkpoint"),
        ({"optimizer": "adamw"}, {"optimizer": "lamb"}, "was trained with another optimizer"),
        ({"optimizer": "lamb"}, {"optimizer": "adamw", "dtype": "float16"}, "was trained with another optimizer"),
    ],
)
def test_a_run_goes_on_with_another_precision_or_optimizer(tmp_path, capsys, before, now, said):
    def trainer_with(options):
        options = dict(options)
        settings = OptimizerConfig(1e-3, 6, optimizer=options.pop("optimizer", "adamw"))
        return trainer_for(config_for(tmp_path, optimizer=settings, **options))

    old, new = trainer_with(before), trainer_with(now)
    counts = ("skipped_steps", "nonfinite_steps")
    for number, variable in enumerate(old.state(counts).values()):
        variable.assign(tf.cast(tf.fill(variable.shape, number + 2), variable.dtype))
    saver.CheckpointSaver(str(tmp_path), 1).save(3, old.state())
    say(str(resume.restore_or_initialize(new.model, new.state, str(tmp_path), None)))
    assert said in capsys.readouterr().err
    for variables, expected in (
        (new.model.variables, old.model.variables),
        (new.optimizer.means, old.optimizer.means),
        (new.optimizer.squared_means, old.optimizer.squared_means),
        ([new.optimizer.global_step], [old.optimizer.global_step]),
        ([new.state()[name] for name in counts], [old.state()[name] for name in counts]),
    ):
        for variable, value in zip(variables, expected, strict=True):
            assert_close(variable.numpy(), value.numpy(), 0)
    if now.get("dtype") == "float16":
        assert float(new.loss_scale.scale.numpy()) == 2.0**15


@pytest.mark.parametrize(
    ("dtype", "jit_compile"),
    [
        ("bfloat16", "no"),
        pytest.param("float16", "no", marks=pytest.mark.graph),
        pytest.param("float16", "yes", marks=pytest.mark.graph),
    ],
)
def test_half_precision_trains_and_resumes(tmp_path, dtype, jit_compile):
    config = config_for(tmp_path / "a", dtype=dtype, jit_compile=jit_compile, steps=4)
    whole, metrics = run(config)
    assert np.isfinite(metrics["loss"])
    assert ("loss_scale" in metrics) == (dtype == "float16")
    assert all(value.dtype == np.float32 for value in whole.values())
    shutil.copytree(tmp_path / "a", tmp_path / "b", ignore=shutil.ignore_patterns("model.ckpt-4*"))
    assert saver.latest_checkpoint(str(tmp_path / "b")).endswith("model.ckpt-2")
    assert_same(run(config.replace(output_dir=str(tmp_path / "b")))[0], whole)


def test_float16_skips_steps_that_overflow_and_stops_if_no_loss_scale_helps(tmp_path):
    trainer = trainer_for(config_for(tmp_path, dtype="float16", steps=9))
    model = trainer.model
    trainer.loss_scale.scale.assign(2.0**24)
    kernel = next(variable for variable in model.variables if variable.path == "bert/pooler/dense/kernel")
    kernel.assign(kernel * 1e4)
    before = values_of(model)
    batches = iter(dataset_from_step(0))
    train_steps(trainer, batches, 1)
    assert float(trainer.loss_scale.scale.numpy()) == 2.0**23
    assert int(trainer.optimizer.skipped_steps.numpy()) == 1 and trainer.nonfinite.count == 0
    assert_same(values_of(model), before)
    assert trainer.step == 1

    loss = model.loss

    def loss_with_infinite_gradient(*args):
        value, metrics = loss(*args)
        return value + tf.sqrt(0.0 * tf.reduce_sum(model.trained_variables[0].value)), metrics

    model.loss = loss_with_infinite_gradient
    trainer.loss_scale.scale.assign(2.0)
    train_steps(trainer, batches, 1)
    assert float(trainer.loss_scale.scale.numpy()) == 1.0
    assert_refused("gradient of step 2 is not finite", train_steps, trainer, batches, 2)


def with_nan_at(*bad_steps):
    def change(step, batch):
        if step in bad_steps:
            batch["masked_lm_weights"] = batch["masked_lm_weights"] * np.float32("nan")
        return batch

    return functools.partial(dataset_from_step, change=change)


def stop_after(monkeypatch, steps):
    """Simulates a signal to a run after some steps."""

    class Signals(list):
        def __bool__(self):
            nonlocal steps
            steps -= 1
            return steps < 1

    monkeypatch.setattr(signals, "stop_signals", lambda: contextlib.nullcontext(Signals()))


def test_non_finite_loss_stops_the_run_and_names_step_and_data(tmp_path):
    with pytest.raises(InputError, match=r"step 3 is not finite.*with --allow_changed_settings.*step: shard of 3"):
        run(config_for(tmp_path), data=with_nan_at(3), describe=lambda step: f"shard of {step}")
    assert saver.latest_checkpoint(str(tmp_path)).endswith("model.ckpt-2")


def test_non_finite_steps_are_skipped_counted_and_bounded(tmp_path, capsys):
    data = {"data": with_nan_at(1, 4), "describe": lambda step: f"shard of {step}"}
    uninterrupted, metrics = run(config_for(tmp_path / "a", max_nonfinite_steps=2), **data)
    output = capsys.readouterr().err
    assert [f"skipped step {step}," in output for step in range(6)] == [step in (1, 4) for step in range(6)]
    assert "Data: shard of 4." in output
    assert metrics["nonfinite_steps"] == 2
    assert all(np.isfinite(value) for value in metrics.values())

    with pytest.raises(
        InputError,
        match=r"step 4 is not finite.*=1 was already reached(.|\n)*skip the step with --max_nonfinite_steps=2",
    ):
        run(config_for(tmp_path / "b", max_nonfinite_steps=1), **data)
    assert int(checkpoints.open_checkpoint(str(tmp_path / "b")).read("nonfinite_steps")) == 1
    capsys.readouterr()
    again, metrics = run(config_for(tmp_path / "b", max_nonfinite_steps=2), **data)
    assert metrics["nonfinite_steps"] == 2  # one of them before the run was resumed
    assert "skipped step 1," not in capsys.readouterr().err
    assert_same(again, uninterrupted)
    assert int(checkpoints.open_checkpoint(str(tmp_path / "b")).read("skipped_steps")) == 2

    more = config_for(tmp_path / "b", steps=8)  # the new limit is lower than the number of skipped steps
    assert_refused("step 7 is not finite", run, more, data=with_nan_at(7))


def test_a_non_finite_step_is_not_saved_after_a_signal(tmp_path, monkeypatch):
    stop_after(monkeypatch, 4)
    config = config_for(tmp_path, steps=10, save_checkpoints_steps=10, log_steps=10)
    assert_refused(r"step 2 is not finite", run, config, data=with_nan_at(2))
    assert saver.latest_checkpoint(str(tmp_path)) is None


def test_a_full_disk_stops_the_run_and_keeps_its_checkpoint(tmp_path, monkeypatch):
    def write(self, kind, step, values):
        if step == 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(log.MetricsLog, "write", write)
    assert_refused(r"can't be written to .*No space left on device.*Free some disk space", run, config_for(tmp_path))
    assert int(checkpoints.open_checkpoint(str(tmp_path)).read("global_step")) == 2


def test_a_lost_worker_ends_the_run_and_is_named_with_the_step_from_which_it_goes_on(tmp_path, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", worker_configs(2)[0])
    lost = tf.errors.UnavailableError(None, None, "Collective ops is aborted by: /job:worker/replica:0/task:1 crashed")
    for start in ("the beginning, because there is no checkpoint", "step 3"):
        message = f"worker 1 has ended, .* Start all workers again. The run in {tmp_path} resumes from {start}"
        with pytest.raises(WorkersError, match=message), explain_errors(TrainingData(None), str(tmp_path), lambda: 3):
            raise lost
        saver.CheckpointSaver(str(tmp_path), 1).save(3, {"x": tf.constant(1.0)})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_stops(tmp_path, number):
    def change(step, batch):
        if step == 3:
            os.kill(os.getpid(), number)
        return batch

    before = signal.getsignal(number)
    config = config_for(tmp_path, steps=50, save_checkpoints_steps=50, log_steps=50)
    with pytest.raises(SystemExit, match="which is saved"):
        run(config, data=lambda start, context: dataset_from_step(start, context, change=change))
    saved = saver.latest_checkpoint(str(tmp_path))
    assert 1 <= int(saved.rpartition("-")[2]) < 10
    assert signal.getsignal(number) == before


@pytest.mark.parametrize("stops_after", [4, 6])
def test_a_stopped_run_loses_no_line_and_no_evaluation(tmp_path, monkeypatch, stops_after):
    evaluation = PeriodicEvaluation(lambda step: {"score": float(step)}, every=2)
    stop_after(monkeypatch, stops_after)
    with pytest.raises(SystemExit, match=f"after step {stops_after}"):
        run(config_for(tmp_path, save_checkpoints_steps=3), hooks=[evaluation])
    monkeypatch.undo()
    for _ in range(2):  # in the second iteration, the run is complete
        run(config_for(tmp_path, save_checkpoints_steps=3), hooks=[evaluation])
        found = [(line["step"], line["kind"]) for line in log.read_metrics(str(tmp_path))]
        assert found == [(step, kind) for step in (2, 4, 6) for kind in ("train", "eval")]


def test_the_feature_of_another_length_is_named():
    record = tf.train.Example(
        features=tf.train.Features(feature={"x": tf.train.Feature(int64_list=tf.train.Int64List(value=[1]))})
    ).SerializeToString()
    message = r"a.tfrecord is damaged: .*Key: x, .*Values size: 1 but output shape: \[2\]\. Regenerate"
    with pytest.raises(InputError, match=message), explain_data(lambda: "a.tfrecord"):
        tf.io.parse_example([record], {"x": tf.io.FixedLenFeature([2], tf.int64)})


def test_damaged_data_and_ids_outside_the_vocabulary_are_named(tmp_path):
    def damaged(start, context):
        good = dataset_from_step(start, context, steps=2)

        def bad(_):
            return tf.io.parse_example(["not a record"], {"x": tf.io.FixedLenFeature([], tf.int64)})

        return good.concatenate(tf.data.Dataset.range(1).map(bad).flat_map(lambda _: good))

    def change(step, batch):
        if step == 3:
            batch["input_ids"][2, 3] = 77
        return batch

    with pytest.raises(InputError, match=r"the data after step 2 \(a.tfrecord\) is damaged"):
        run(config_for(tmp_path), data=damaged, describe=lambda step: "a.tfrecord")
    with pytest.raises(InputError, match=r"after step 3 \(3\) contains the id 77"):
        run(config_for(tmp_path), data=functools.partial(dataset_from_step, change=change))


def test_metrics_evaluations_and_a_trace_are_written(tmp_path, capsys):
    scores = iter([3.0, 2.0, 1.0])
    evaluation = PeriodicEvaluation(lambda step: {"loss": next(scores)}, every=3)
    _, metrics = run(config_for(tmp_path, steps=7, peak_tflops=1e-3, profile_steps="1:2"), hooks=[evaluation])
    assert len(list(tmp_path.glob("plugins/profile/*/*.xplane.pb"))) == 1
    bar = capsys.readouterr().err
    for name in ("loss", "masked_lm_accuracy", "next_sentence_accuracy", "sequences_per_second", "flop_utilisation"):
        assert f" {name}=" in bar
    lines = log.read_metrics(str(tmp_path))
    evaluated = [(line["step"], line["loss"]) for line in lines if line["kind"] == "eval"]
    assert evaluated == [(3, 3.0), (6, 2.0), (7, 1.0)]
    assert list((tmp_path / "eval").glob("events*"))
    events = tf.compat.v1.train.summary_iterator(str(next(tmp_path.glob("events*"))))
    tags = {value.tag for event in events for value in event.summary.value}
    assert {"loss", "masked_lm_loss", "next_sentence_accuracy", "learning_rate", "gradient_norm"} <= tags
    trained = [line for line in lines if line["kind"] == "train"]
    assert [line["step"] for line in trained] == [2, 3, 4, 6, 7] and trained[-1].items() >= metrics.items()


def test_metric_means():
    means = MetricMeans(["a", "b"])
    means.add({"a": (tf.constant(3.0), tf.constant(2.0)), "b": (tf.constant(0.0), tf.constant(0.0))})
    means.add({"a": (tf.constant(1.0), tf.constant(2.0)), "b": (tf.constant(0.0), tf.constant(0.0))})
    assert means.take() == {"a": 1.0, "b": 0.0}
    assert means.take() == {"a": 0.0, "b": 0.0}
