"""Training keeps nothing in memory after its end."""

import gc

import keras
import numpy as np
import pytest
from tensorflow.python.framework import func_graph, ops

import bert_tf
from bert_tf.encoder import BertEncoder
from bert_tf.finetuning.feature_sets import FeatureSet
from tests.api.tiny import FIT, LABELS, TEXTS
from tests.conftest import tiny_config


def fit_classifier(pretrained):
    """Trains with recomputation, and evaluates."""
    classifier = bert_tf.Classifier.from_pretrained(pretrained, max_seq_length=16)
    classifier.fit(TEXTS, LABELS, **FIT, verbose=0, gradient_checkpointing=True, validation_data=(TEXTS, LABELS))


def fit_keras_model(_):
    inputs = keras.Input([16], dtype="int32")
    model = keras.Model(inputs, BertEncoder(tiny_config(num_hidden_layers=1))(inputs).pooled_output)
    model.compile("sgd", "mse", jit_compile=False)
    model.fit(np.ones([4, 16], np.int32), np.ones([4, 12]), verbose=0)


def counts():
    gc.collect()
    objects = gc.get_objects()
    kept = {kind.__name__: sum(type(x) is kind for x in objects) for kind in (func_graph.FuncGraph, FeatureSet)}
    return kept | {"gradients": len(ops.gradient_registry._registry)}


@pytest.mark.parametrize("fit", [fit_classifier, fit_keras_model])
def test_a_training_keeps_no_graph_and_no_data(fit, pretrained):
    fit(pretrained)  # traces the functions that all training runs share
    first = counts()
    fit(pretrained)
    assert counts() == first
