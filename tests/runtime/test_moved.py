"""Tests the old names of modules that moved."""

import importlib
import sys

import pytest

from bert_tf.runtime.moved import MOVED


@pytest.mark.parametrize("old", MOVED)
def test_an_old_name_is_the_new_module(old):
    with pytest.warns(FutureWarning, match=f"{old} is now {MOVED[old]}. Import the new name."):
        assert importlib.import_module(old) is importlib.import_module(MOVED[old])
    sys.modules.pop(old)


def test_the_error_for_another_name_refers_to_the_list():
    with pytest.raises(ModuleNotFoundError, match=r"bert_tf\.tasks\.glue'\. CHANGELOG\.md lists"):
        importlib.import_module("bert_tf.tasks.glue")
