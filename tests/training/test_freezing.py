"""Frozen parts keep their weights, and need neither a backward pass nor moments of the optimizer."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf.config import DTYPES
from bert_tf.finetuning.models import ClassifierModel
from bert_tf.optimization import OptimizerConfig
from bert_tf.pretraining.model import PretrainingModel
from bert_tf.training.settings import TrainingConfig
from tests import conftest
from tests.conftest import assert_refused, loss_and_gradients, needed_operations, tiny_config, train_steps

LAYERS = 2
BATCH = {
    "input_ids": np.arange(5, 29, dtype=np.int32).reshape(4, 6),
    "input_mask": np.ones([4, 6], np.int32),
    "segment_ids": np.zeros([4, 6], np.int32),
    "label_ids": np.array([0, 1, 1, 0], np.int32),
    "masked_lm_positions": np.ones([4, 1], np.int32),
    "masked_lm_ids": np.full([4, 1], 7, np.int32),
    "masked_lm_weights": np.ones([4, 1], np.float32),
    "next_sentence_labels": np.array([[0], [1], [1], [0]], np.int32),
}


def trainer_of(model_class=ClassifierModel, **settings):
    """Returns a trainer for a model with frozen parts."""
    config = TrainingConfig("unused", OptimizerConfig(1e-2, 10), 4, **settings)
    keras.utils.set_random_seed(1)
    options = {"dtype": DTYPES[config.dtype], "gradient_checkpointing": config.gradient_checkpointing}
    outputs = () if model_class is PretrainingModel else (2,)
    model = model_class(tiny_config(num_hidden_layers=LAYERS), *outputs, **options)
    config.freeze(model.encoder)
    return conftest.trainer_of(model, config, tf.distribute.get_strategy())


def is_frozen(path, freezing):
    lowest = freezing.get("freeze_layers", LAYERS)
    names = ("bert/",) if "freeze_encoder" in freezing else ("bert/embeddings/",)
    return path.startswith((*names, *(f"bert/encoder/layer_{i}/" for i in range(lowest))))


@pytest.mark.eager
@pytest.mark.parametrize("model_class", [ClassifierModel, PretrainingModel])
@pytest.mark.parametrize(
    ("freezing", "options"),
    [
        ({"freeze_layers": 0}, {}),
        ({"freeze_layers": 1}, {"gradient_accumulation_steps": 2, "dtype": "bfloat16", "gradient_checkpointing": True}),
        ({"freeze_layers": LAYERS}, {"gradient_checkpointing": True}),
        ({"freeze_encoder": True}, {"gradient_accumulation_steps": 2}),
    ],
    ids=str,
)
def test_only_the_other_parts_are_trained(model_class, freezing, options):
    trainer = trainer_of(model_class, **options, **freezing)
    before = {variable.path: variable.numpy() for variable in trainer.model.variables}
    train_steps(trainer, iter([tf.nest.map_structure(tf.constant, BATCH)] * 2), 2)
    for variable in trainer.model.variables:
        is_equal = np.array_equal(variable.numpy(), before[variable.path])
        assert is_equal == is_frozen(variable.path, freezing), variable.path
    moments = [path for path in trainer.optimizer.state() if path.endswith(("/adam_m", "/adam_v"))]
    assert moments and not any(is_frozen(path, freezing) for path in moments)


def matrix_multiplications(**freezing):
    model, batch = trainer_of(**freezing).model, tf.nest.map_structure(tf.constant, BATCH)
    gradients = tf.function(lambda: loss_and_gradients(model, batch)[-1])
    return sum("MatMul" in operation for operation in needed_operations(gradients))


def test_no_backward_pass_below_the_lowest_trained_layer():
    counts = [matrix_multiplications(freeze_layers=layers) for layers in range(-1, LAYERS + 1)]
    saved = -np.diff(counts)  # the multiplications saved by each further frozen layer
    assert saved[0] > 0
    assert (saved[1:] > 20).all()


@pytest.mark.parametrize("more", [{"freeze_layers": LAYERS + 1}, {"freeze_layers": 1, "freeze_encoder": True}])
def test_settings_that_cannot_be_followed_are_refused(more):
    assert_refused("^--freeze_layers[^,]*: ", trainer_of, **more)
