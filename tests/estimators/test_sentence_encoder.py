"""Vectors of texts."""

import numpy as np
import pytest

import bert_tf
from bert_tf.runtime.files import InputError
from tests.conftest import assert_close

pytestmark = pytest.mark.plain


@pytest.mark.parametrize("pooling", ["mean", "max", "cls", "pooled"])
def test_vectors_are_those_of_each_text_alone(pretrained, pooling):
    encoder = bert_tf.Encoder.from_pretrained(pretrained, max_seq_length=16)
    texts = ["day", ("a fine day", "words"), "a fine poor day here words"]
    vectors = encoder.encode(texts, pooling=pooling, batch_size=3)
    for text, vector in zip(texts, vectors, strict=True):
        output = encoder.bert(text)
        states = output.sequence_output[0].numpy()
        expected = {
            "mean": states.mean(axis=0),
            "max": states.max(axis=0),
            "cls": states[0],
            "pooled": output.pooled_output[0].numpy(),
        }[pooling]
        assert_close(vector, expected, 1e-5)
    lengths = np.linalg.norm(encoder.encode(texts, pooling=pooling, normalize=True), axis=1)
    assert_close(lengths, 1, 1e-6)


def test_sizes_that_give_no_vectors_are_refused(pretrained):
    with pytest.raises(InputError, match="max_seq_length is 2, but a whole number of at least 4"):
        bert_tf.Encoder.from_pretrained(pretrained, max_seq_length=2)
    with pytest.raises(InputError, match="batch size is -1, but a whole number of at least 1"):
        bert_tf.Encoder.from_pretrained(pretrained).encode(["day"], batch_size=-1)
