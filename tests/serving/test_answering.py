"""Tests inputs that all models for plain Python values refuse."""

import pandas as pd
import pytest

from bert_tf.runtime.errors import InputError
from bert_tf.serving.answering import Input, Predictor
from tests.conftest import assert_refused


class _Echo(Predictor):
    def _answer(self, examples):
        return examples


def test_examples_come_in_lists_and_batches():
    model = _Echo({"text": Input(str)})
    assert model.predict(["b", {"text": "aa"}], batch_size=1) == [{"text": "b"}, {"text": "aa"}]
    table = pd.DataFrame({"text": ["b", "aa"], "other": [1, 2]})
    assert model.predict(table) == [{"text": "b"}, {"text": "aa"}]
    for alone in ("a text", {"text": "a text"}):
        assert_refused(r"examples is .*a text.*Pass a list of examples", model.predict, alone)
    assert_refused("batch_size is 0", model.predict, ["a"], 0)
    assert_refused("example 1: the field 'text' must be text, not 5", model.predict, ["a", {"text": 5}])
    with pytest.raises(InputError, match="example 0: 'a' is not an object with the fields 'text_a', 'text_b'"):
        _Echo({"text_a": Input(str), "text_b": Input(str)}).predict(["a"])
