"""Tests the old names of modules that moved."""

import importlib
import importlib.util
import sys

import pytest

from bert_tf.runtime.moved import MOVED, RENAMED


@pytest.mark.parametrize("old", MOVED)
def test_an_old_name_is_the_new_module(old):
    with pytest.warns(FutureWarning, match=f"{old} is now {MOVED[old]}. Import the new name."):
        assert importlib.import_module(old) is importlib.import_module(MOVED[old])
    sys.modules.pop(old)


@pytest.mark.parametrize("old", RENAMED)
def test_the_error_for_another_old_name_contains_the_new_name(old):
    assert importlib.util.find_spec(f"bert_tf.{old}") is None
    assert importlib.util.find_spec(f"bert_tf.{RENAMED[old]}")
    with pytest.raises(ModuleNotFoundError, match=f"bert_tf.{old}'. It is now 'bert_tf.{RENAMED[old]}'."):
        importlib.import_module(f"bert_tf.{old}")


def test_a_name_that_never_existed_has_the_error_of_python():
    with pytest.raises(ModuleNotFoundError, match=r"'bert_tf\.other'$"):
        importlib.import_module("bert_tf.other")
