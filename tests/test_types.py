"""Tests the types of the settings that the Python classes take as keyword arguments."""

import importlib
import pathlib
import typing

import pytest

import bert_tf
from bert_tf.api import arguments, setting_types
from bert_tf.finetuning.finetuning_config import FinetuningConfig
from bert_tf.runtime.settings import MODEL, flags_of
from tests.conftest import ROOT
from tests.test_deploy import load

generator = load(ROOT / ".ci" / "setting_types.py")


def test_the_types_are_those_of_the_settings():
    assert pathlib.Path(setting_types.__file__).read_text() == generator.generated(), "run `make setting-types`"


@pytest.mark.parametrize("name", ["Classifier", "Regressor", "TokenClassifier", "QuestionAnswerer"])
def test_every_argument_is_accepted(name):
    kind = getattr(bert_tf, name)
    keys = typing.get_type_hints(getattr(setting_types, f"{name}Settings")).keys() - {"output_dir"}
    known = arguments.accepted(FinetuningConfig, MODEL)
    assert keys == known.keys() | flags_of(kind._OPTIONS)


@pytest.mark.parametrize("name", ["bert_tf", "bert_tf.optimization", "bert_tf.tasks.squad"])
def test_names_for_type_checkers_can_be_imported(name):
    module = importlib.import_module(name)
    assert module.__all__ and {*module.__all__} <= {*dir(module)}
    exec(f"from {name} import *", {})
