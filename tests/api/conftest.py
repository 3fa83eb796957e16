"""The tiny model that estimators start from, and a stand-in for training."""

import keras
import pytest

from bert_tf import checkpoints
from bert_tf.api import base
from bert_tf.encoder import BertEncoder
from tests.conftest import tiny_config


@pytest.fixture(scope="session")
def pretrained(tmp_path_factory):
    """A directory with a tiny, randomly initialised model and its vocabulary."""
    directory = tmp_path_factory.mktemp("pretrained")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *["a", "fine", "poor", "day", "words", "here"]]
    (directory / "vocab.txt").write_text("\n".join(pieces) + "\n")
    config = tiny_config(vocab_size=len(pieces), num_hidden_layers=1)
    (directory / "bert_config.json").write_text(config.to_json_string())
    keras.utils.set_random_seed(1)
    weights = {variable.path: variable.numpy() for variable in BertEncoder(config).weights}
    checkpoints.write_checkpoint(str(directory / "bert_model.ckpt"), weights)
    return str(directory)


@pytest.fixture
def tasks(monkeypatch):
    """The tasks that estimators would train on, which they don't."""
    found = []
    monkeypatch.setattr(base, "finetune", lambda task, *_, **__: found.append(task) or {})
    return found
