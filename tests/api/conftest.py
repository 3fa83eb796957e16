"""Fixtures: a tiny model that estimators start from, and a substitute for training."""

import shutil

import keras
import pytest

from bert_tf import convert_checkpoint
from bert_tf.api import base
from bert_tf.config import BertConfig
from bert_tf.encoder import BertEncoder
from tests.conftest import tiny_config, with_large_head
from tests.finished_runs import write_model


@pytest.fixture(scope="session")
def pretrained(tmp_path_factory):
    """Returns a directory with a tiny, randomly initialised model and its vocabulary."""
    directory = tmp_path_factory.mktemp("pretrained")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *["a", "fine", "poor", "day", "words", "here"]]
    keras.utils.set_random_seed(1)
    write_model(directory, BertEncoder(tiny_config(vocab_size=len(pieces), num_hidden_layers=1)), pieces)
    return str(directory)


@pytest.fixture
def tasks(monkeypatch):
    """Replaces training. Returns the list of tasks that estimators would train on."""
    found = []
    monkeypatch.setattr(base, "finetune", lambda task, *_, **__: found.append(task) or {})
    return found


@pytest.fixture
def read(pretrained, tasks):
    """Returns a function from data to the task that `fit` builds."""

    def task_of(kind, x, y=None, **options):
        kind.from_pretrained(pretrained, max_seq_length=16, **options).fit(x, y, num_train_steps=1)
        return tasks.pop()

    return task_of


@pytest.fixture
def fine_tuned(pretrained, tmp_path):
    """Writes a fine-tuned model in Hugging Face's format with the given classes, and returns the directory."""

    def write(model_class, names, **settings):
        shutil.copy(f"{pretrained}/vocab.txt", tmp_path)
        config = BertConfig.from_json_file(f"{pretrained}/bert_config.json")
        model = with_large_head(model_class(config, len(names)))
        model.head.output_bias.assign(settings.pop("bias", [0] * len(names)))
        weights = {variable.path: variable.numpy() for variable in model.variables}
        convert_checkpoint.write_hf(str(tmp_path), weights, config, settings | {"id2label": dict(enumerate(names))})
        return tmp_path

    return write
