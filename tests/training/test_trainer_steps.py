"""Tests steps of a tiny model: clipping with two replicas compared with NumPy, two phases, and loss curves."""

import json
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf.config import DTYPES
from bert_tf.distribution import strategies
from bert_tf.distribution.devices import DistributionConfig
from bert_tf.distribution.strategies import build_strategy
from bert_tf.optimization import OptimizerConfig, SecondSchedule
from bert_tf.pretraining.model import PretrainingModel
from bert_tf.training.interface import TrainableModel
from bert_tf.training.settings import TrainingConfig
from tests import conftest, programs
from tests.conftest import assert_close, tiny_config, train_steps, without_dropout
from tests.training.test_training import config_for, dataset_from_step

STEPS, ROWS, WIDTH = 3, 6, 4


class WeightedRegression(TrainableModel):
    """A linear model whose loss is divided by a sum of weights, like the masked-LM loss."""

    def __init__(self, start):
        self.variables = [keras.Variable(start, name="kernel")]

    def flops(self, batch):
        return tf.constant(0.0)

    def totals(self, batch):
        return {"weights": tf.reduce_sum(batch["weights"])}

    def loss(self, batch, totals, seed):
        errors = tf.linalg.matvec(batch["x"], self.variables[0].value) - batch["y"]
        return tf.reduce_sum(batch["weights"] * errors**2) / (totals["weights"] + 1e-5), {}


def gradient(w, x, y, weights):
    """Returns the loss of some rows alone, and the gradient of this loss."""
    errors = x @ w - y
    total = weights.sum() + 1e-5
    return (weights * errors**2).sum() / total, 2 * (weights * errors) @ x / total


def clipped(g, limit):
    return g * min(1, limit / np.linalg.norm(g))


def restated(w, batches, config):
    """Returns weights, last loss and last gradient norm of the original steps on two cores (per_replica) or of ours."""
    m, v = np.zeros_like(w), np.zeros_like(w)
    for step, (x, y, weights) in enumerate(batches):
        if config.clip_gradients == "per_replica":
            half = ROWS // 2
            found = [gradient(w, x[rows], y[rows], weights[rows]) for rows in (slice(half), slice(half, ROWS))]
            g = sum(clipped(g, config.clip_norm) for _, g in found)  # a sum, not a mean
            loss, norm = np.mean([loss for loss, _ in found]), np.mean([np.linalg.norm(g) for _, g in found])
        else:
            loss, g = gradient(w, x, y, weights)
            norm = np.linalg.norm(g)
            g = clipped(g, config.clip_norm)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        rate = config.learning_rate * (1 - step / config.num_train_steps)
        w = w - rate * (m / (np.sqrt(v) + config.epsilon) + config.weight_decay_rate * w)
    return w, loss, norm


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("clip_gradients", ["global", "per_replica"])
def test_two_replicas_clip_as_the_release_or_as_one_device(clip_gradients, parts):
    # With a large epsilon, updates depend on the size of the gradients, and not only on their direction.
    options = {"epsilon": 0.1, "clip_norm": 0.7, "clip_gradients": clip_gradients}
    optimizer = OptimizerConfig(0.1, 10, **options)
    config = TrainingConfig("", optimizer, ROWS, gradient_accumulation_steps=parts)
    rng = np.random.default_rng(2)
    start = rng.normal(size=WIDTH).astype(np.float32)
    batches = [
        (rng.normal(size=(ROWS, WIDTH)), rng.normal(size=ROWS), np.array([1.0, 0, 1, 1, 1, 1]) * rng.random(ROWS))
        for _ in range(STEPS)
    ]
    strategy = build_strategy(DistributionConfig("mirrored"))
    with strategy.scope():
        trainer = conftest.trainer_of(WeightedRegression(start), config, strategy)

    def rows_of_replicas(context):
        size = context.get_per_replica_batch_size(ROWS)
        columns = [np.concatenate(column).astype(np.float32) for column in zip(*batches, strict=True)]
        dataset = tf.data.Dataset.from_tensor_slices(dict(zip(("x", "y", "weights"), columns, strict=True)))
        return dataset.map(lambda row: row | {"input_mask": tf.constant(1)}).batch(size, drop_remainder=True)

    data = iter(strategy.distribute_datasets_from_function(rows_of_replicas))
    train_steps(trainer, data, STEPS - 1)
    found = train_steps(trainer, data, 1)
    assert config.resume_settings(strategy).get("replicas") == (2 if clip_gradients == "per_replica" else None)
    weights, loss, norm = restated(start, batches, optimizer)
    assert_close(trainer.model.variables[0].numpy(), weights, 1e-5)
    assert_close(found["loss"], loss, 1e-5)
    assert_close(found["gradient_norm"], norm, 1e-5)
    other = {"global": "per_replica", "per_replica": "global"}[clip_gradients]
    differing, *_ = restated(start, batches, optimizer.replace(clip_gradients=other))
    assert np.abs(differing - weights).max() > 1e-2


def repeated_batch():
    rng = np.random.default_rng(0)
    batch = {"x": rng.normal(size=(ROWS, WIDTH)), "y": rng.normal(size=ROWS), "weights": np.ones(ROWS)}
    batch = {name: tf.constant(value, tf.float32) for name, value in batch.items()} | {"input_mask": tf.ones([ROWS])}
    return iter(tf.data.Dataset.from_tensors(batch).repeat())


def trainer_of(config, model_class=WeightedRegression):
    strategy = build_strategy(DistributionConfig())
    with strategy.scope():
        return conftest.trainer_of(model_class(np.ones(WIDTH, np.float32)), config, strategy)


@pytest.mark.parametrize(("graph_per_shape", "is_short"), [(True, True), (False, True), (False, False)])
def test_only_steps_of_short_runs_are_without_the_graph_optimizer(graph_per_shape, is_short):
    def is_off():
        return tf.config.optimizer.get_experimental_options()["disable_meta_optimizer"]

    class Recording(WeightedRegression):
        def loss(self, *arguments):
            self.was_off = is_off()
            return super().loss(*arguments)

    trainer = trainer_of(TrainingConfig("", OptimizerConfig(0.1, 10), ROWS), Recording)
    for _ in trainer.steps(repeated_batch(), 2, graph_per_shape, is_short):
        assert trainer.model.was_off == is_short
        assert not is_off()


@pytest.mark.parametrize(
    ("seconds", "stops"), [(0.01, [2, 3, 13]), (1.0, [2, 3, 8, 13, 18]), (9.0, [*range(2, 20)])], ids=str
)
def test_workers_look_for_requests_to_stop_more_often_if_steps_are_slow(seconds, stops, monkeypatch):
    monkeypatch.setattr(strategies, "is_multi_worker", lambda strategy: True)
    now, found = 0.0, []
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    trainer = trainer_of(TrainingConfig("", OptimizerConfig(0.1, 10), ROWS))
    for step in range(1, 20):
        now += seconds
        trainer.stop_requests.assign(trainer.stop_request)  # as in a step with one replica
        found += [step] if trainer.should_stop(True) else []
    assert found == stops


@pytest.mark.parametrize("clip_gradients", ["global", "per_replica"])
def test_gradients_are_added_up_in_the_type_that_was_asked_for(clip_gradients, monkeypatch):
    types, add_up = [], strategies.sum_over_replicas
    monkeypatch.setattr(
        strategies, "sum_over_replicas", lambda *arguments: types.append(arguments[2]) or add_up(*arguments)
    )
    optimizer = OptimizerConfig(0.1, 4, clip_gradients=clip_gradients)
    config = TrainingConfig("", optimizer, ROWS, gradient_sum_dtype="bfloat16")
    train_steps(trainer_of(config), repeated_batch(), 1)
    assert set(types) == {"bfloat16"}
    recorded = config.resume_settings(build_strategy(DistributionConfig()))
    assert (recorded["gradient_sum_dtype"], recorded["replicas"]) == ("bfloat16", 1)


def test_a_checkpoint_says_when_the_means_were_reset():
    second = SecondSchedule(1, 0.1, reset_moments=True)
    config = TrainingConfig("", OptimizerConfig(0.1, 4, optimizer="lamb", second_schedule=second), ROWS)
    data = repeated_batch()

    def state_of(trainer):
        return {name: variable.numpy() for name, variable in trainer.state().items()}

    whole, resumed = trainer_of(config), trainer_of(config)
    for _ in range(2):
        whole.optimizer.begin_phase(whole.step)
        train_steps(whole, data, 1)
    for name, value in state_of(whole).items():
        resumed.state([*state_of(whole)])[name].assign(value)
    for trainer in (whole, resumed):
        trainer.optimizer.begin_phase(trainer.step)
        train_steps(trainer, data, 1)
    np.testing.assert_equal(state_of(resumed), state_of(whole))
    assert state_of(whole)["skipped_steps"] == 1


CURVE_STEPS = 200


def learnable(step, batch):
    """Returns a batch in which few tokens are frequent, so that the loss falls."""
    return batch | {"masked_lm_ids": batch["masked_lm_ids"] % 5}


def losses(replicas, dtype):
    """Returns the loss of every step, always with the same initial values and batches."""
    strategy = build_strategy(DistributionConfig("mirrored" if replicas > 1 else "one_device"))
    tf.keras.utils.set_random_seed(1)
    with strategy.scope():
        model = PretrainingModel(without_dropout(tiny_config(num_hidden_layers=1)), dtype=DTYPES[dtype])
        trainer = conftest.trainer_of(model, config_for("unused", CURVE_STEPS, dtype=dtype), strategy)
    batches = iter(
        strategy.distribute_datasets_from_function(
            lambda context: dataset_from_step(0, context, steps=CURVE_STEPS, change=learnable)
        )
    )
    return [trainer.take_means()["loss"] for _ in trainer.steps(batches, CURVE_STEPS)]


def losses_in_a_process(replicas, dtype):
    """Returns the losses from a separate process, because the number of devices is fixed in a process."""
    code = (
        "import json, tensorflow as tf\n"
        "cpu, = tf.config.list_physical_devices('CPU')\n"
        f"tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * {replicas})\n"
        f"assert len(tf.config.list_logical_devices()) == {replicas}\n"
        "from tests.training import test_trainer_steps\n"
        f"print(json.dumps(test_trainer_steps.losses({replicas}, {dtype!r})))\n"
    )
    return np.array(json.loads(programs.run("-c", code).splitlines()[-1]))


@pytest.mark.slow  # two minutes for each type
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 2e-2)])
def test_curves_of_one_two_and_four_replicas_are_the_same(dtype, tolerance):
    one, two, four = (losses_in_a_process(replicas, dtype) for replicas in (1, 2, 4))
    assert one[-20:].mean() < one[:20].mean() - 0.1  # the loss falls
    np.testing.assert_allclose(two, one, rtol=tolerance)
    np.testing.assert_allclose(four, one, rtol=tolerance)
