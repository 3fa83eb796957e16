"""Tests the Keras layer for raw text."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import bert_tf
from bert_tf.encoder import BertEncoder
from bert_tf.runtime.errors import InputError
from bert_tf.text import Tokenizer
from tests.conftest import assert_close, assert_refused, tiny_config

pytestmark = pytest.mark.plain
PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "fine", "poor", "day", "words", "##y", "É")
TEXTS = tf.constant(["a fine day", "a poor day"] * 8)
SECOND = tf.constant([["wordsy words"], [""]] * 8)
LABELS = np.array([1, 0] * 8)


@pytest.fixture
def tokenizer(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    return Tokenizer(str(tmp_path / "vocab.txt"), do_lower_case=False)


def test_the_inputs_are_those_of_the_tokenizer(tokenizer):
    pairs = [("a fine day É", "wordsy"), ("A poor day words words words", "words words a"), ("", "a")]
    first, second = map(tf.constant, zip(*pairs, strict=True))
    for padding in (True, "max_length"):
        layer = bert_tf.TextToInputs(tokenizer, max_seq_length=8, pad_to_max_seq_length=padding == "max_length")
        for found, expected in (
            (layer(first), tokenizer([a for a, _ in pairs], max_length=8, padding=padding)),
            (layer(first, second[:, tf.newaxis]), tokenizer(pairs, max_length=8, padding=padding)),
        ):
            assert found.keys() == expected.keys()
            for name, values in expected.items():
                assert_close(found[name], values, 0, name)


def test_a_model_of_texts_is_trained_saved_and_exported(tokenizer, tmp_path):
    keras.utils.set_random_seed(1)
    texts = [keras.Input((), dtype="string"), keras.Input((1,), dtype="string")]
    inputs = bert_tf.TextToInputs(tokenizer, max_seq_length=8)(*texts)
    encoder = BertEncoder(tiny_config(vocab_size=len(PIECES), num_hidden_layers=1))
    model = keras.Model(texts, keras.layers.Dense(2)(encoder(inputs).pooled_output))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.03), loss, jit_compile=False)
    losses = model.fit([TEXTS, SECOND], LABELS, epochs=12, verbose=0).history["loss"]
    assert losses[-1] < 0.5 * losses[0]
    predicted = model.predict([TEXTS, SECOND], verbose=0)
    model.save(tmp_path / "model.keras")
    (tmp_path / "vocab.txt").unlink()  # the saved model has the vocabulary
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_close(loaded.predict([TEXTS, SECOND], verbose=0), predicted, 0)
    model.export(tmp_path / "exported", verbose=False)
    exported = tf.saved_model.load(str(tmp_path / "exported"))
    assert_close(exported.serve([TEXTS, SECOND]), predicted, 1e-6)


@pytest.mark.parametrize("texts", [np.zeros([2]), np.array([["a", "b"]]), np.array("a")])
def test_other_inputs_are_refused(tokenizer, texts):
    with pytest.raises(InputError, match=r"TextToInputs got .* Pass strings with shape \[batch\] or \[batch, 1\]"):
        bert_tf.TextToInputs(tokenizer)(texts)
    assert_refused("max_seq_length is 2", bert_tf.TextToInputs, tokenizer, max_seq_length=2)
