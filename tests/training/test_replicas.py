"""Curves of several replicas beside those of one, over hundreds of steps."""

import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.pretraining.model import PretrainingModel
from bert_tf.training.loop import Trainer
from bert_tf.training.settings import DTYPES
from tests.conftest import ROOT, tiny_config, without_dropout
from tests.training.test_training import config_for, dataset_from_step

pytestmark = pytest.mark.plain

STEPS = 200


def learnable(step, batch):
    """A batch in which few pieces are frequent, so that the loss falls."""
    return batch | {"masked_lm_ids": batch["masked_lm_ids"] % 5}


def losses(replicas, dtype):
    """The loss of every step, from the same initial values and batches."""
    devices = [f"CPU:{i}" for i in range(replicas)]
    strategy = tf.distribute.OneDeviceStrategy("CPU:0") if replicas == 1 else tf.distribute.MirroredStrategy(devices)
    tf.keras.utils.set_random_seed(1)
    with strategy.scope():
        model = PretrainingModel(without_dropout(tiny_config(num_hidden_layers=1)), dtype=DTYPES[dtype])
        trainer = Trainer(model, config_for("unused", STEPS, dtype=dtype), strategy)
    batches = iter(
        strategy.distribute_datasets_from_function(
            lambda context: dataset_from_step(0, context, steps=STEPS, change=learnable)
        )
    )
    return [trainer.take_means()["loss"] for _ in trainer.steps(batches, STEPS)]


def losses_in_a_process(replicas, dtype):
    """The losses from a process of its own: TensorFlow's sums over different replicas get into each other's way."""
    code = (
        "import json, tensorflow as tf\n"
        "from tests.training import test_replicas\n"  # imports conftest, which makes two devices
        "cpu, = tf.config.list_physical_devices('CPU')\n"
        "tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)\n"
        "assert len(tf.config.list_logical_devices()) == 4\n"
        f"print(json.dumps(test_replicas.losses({replicas}, {dtype!r})))\n"
    )
    output = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True)
    return np.array(json.loads(output.stdout.splitlines()[-1]))


def test_curves_of_one_and_two_replicas_are_the_same():
    one, two = (np.array(losses(replicas, "float32")) for replicas in (1, 2))
    assert one[-20:].mean() < one[:20].mean() - 0.1  # the loss falls
    np.testing.assert_allclose(two, one, rtol=1e-5)


@pytest.mark.slow  # two minutes for each type
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 2e-2)])
def test_curves_of_one_two_and_four_replicas_are_the_same(dtype, tolerance):
    one, two, four = (losses_in_a_process(replicas, dtype) for replicas in (1, 2, 4))
    assert one[-20:].mean() < one[:20].mean() - 0.1  # the loss falls
    np.testing.assert_allclose(two, one, rtol=tolerance)
    np.testing.assert_allclose(four, one, rtol=tolerance)
