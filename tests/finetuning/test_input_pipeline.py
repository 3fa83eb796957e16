import functools

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.distribution import strategies
from bert_tf.finetuning import input_pipeline
from bert_tf.finetuning.feature_sets import BatchSampler, FeatureSet
from bert_tf.finetuning.models import SpanModel
from bert_tf.optimization import OptimizerConfig
from bert_tf.training.loop import Trainer
from bert_tf.training.settings import TrainingConfig
from tests.conftest import assert_close, tiny_config, train_steps, without_dropout


@pytest.mark.plain
def test_one_graph_divides_batches_of_all_lengths_into_parts():
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    sequences = [([7] * n, [0] * n) for n in (3, 5, 11, 14)]
    labels = {name: np.array([0, 2, 1, 2], np.int32) for name in ("start_positions", "end_positions")}
    features = FeatureSet.from_sequences(sequences, labels)

    def losses(parts):
        config = TrainingConfig("unused", OptimizerConfig(1e-2, 10), 2, gradient_accumulation_steps=parts)
        tf.keras.utils.set_random_seed(1)
        with strategy.scope():
            model = SpanModel(without_dropout(tiny_config(num_hidden_layers=1)))
            trainer = Trainer(model, config, strategy)
        data = input_pipeline.training_data(BatchSampler(features, 2, 1, [8, 16], False), 4)
        batches = strategies.batches(strategy, functools.partial(data.from_step, 0))
        return [train_steps(trainer, batches, 1)["loss"] for _ in range(4)]

    assert_close(losses(2), losses(1), 1e-5)
