"""Tests the Python functions for vocabularies and pre-training data."""

import json
import pathlib

import pandas as pd
import pytest

from bert_tf.runtime.files import InputError
from data_prep import api
from tests.conftest import assert_refused

TEXTS = ["The whale was white. It swam in the sea.\nNobody saw it.", "She danced with him. He was glad."] * 10


def test_texts_become_a_vocabulary_and_examples(tmp_path):
    vocab, records = str(tmp_path / "vocab.txt"), str(tmp_path / "corpus.tfrecord")
    api.build_vocab(TEXTS, vocab, vocab_size=80, reserved_tokens=["[URL]", "[NUM]"])
    with open(vocab, encoding="utf-8") as reader:
        assert {"[MASK]", "[URL]", "[NUM]", "whale"} <= set(reader.read().split())
    api.create_pretraining_data(TEXTS, records, vocab, max_seq_length=16, max_predictions_per_seq=3, dupe_factor=1)
    (metadata,) = tmp_path.glob("corpus.tfrecord.*json*")
    settings = json.loads(metadata.read_text())["settings"]
    assert (settings["corpus"]["split_sentences"], settings["dupe_factor"], settings["input_files"]) == (True, 1, 1)


def test_half_of_a_surrogate_pair_is_cleaned_as_in_files(tmp_path, capfd):
    vocab = tmp_path / "vocab.txt"
    api.build_vocab(["hello \ud83d wörld"] * 10, vocab, vocab_size=40, do_lower_case=False)
    assert {"hello", "wörld"} <= set(vocab.read_text(encoding="utf-8").split())
    assert "cleaned 10 lines (half of a surrogate pair" in capfd.readouterr().err


def test_errors_are_those_of_the_programs(tmp_path):
    for texts in ({"text": ["a"]}, pd.DataFrame({"text": ["a"]})):
        assert_refused(r"texts is a .*one column of a table", api.build_vocab, texts, tmp_path / "vocab.txt")
    assert_refused(r"text 1 is '5' \(int\)\. Use a str", api.build_vocab, ["a", 5], str(tmp_path / "vocab.txt"))
    with pytest.raises(InputError, match=r"^data_prep\.build_vocab: --input_file: .*no_such\.txt"):
        api.build_vocab(pathlib.Path("no_such.txt"), tmp_path / "vocab.txt")
    with pytest.raises(InputError, match="Unknown command line flag 'vocab_sise'"):
        api.build_vocab(["a"], str(tmp_path / "vocab.txt"), vocab_sise=5)
