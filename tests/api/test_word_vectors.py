"""Compares word vectors with the hidden states of the tokens."""

import json

import keras
import numpy as np
import pytest

import bert_tf
from bert_tf import checkpoints, features
from bert_tf.encoder import BertEncoder
from bert_tf.features import Word
from bert_tf.text.vocabulary import SPECIAL_TOKENS
from tests import programs
from tests.conftest import assert_close, assert_refused, tiny_config

pytestmark = [pytest.mark.eager, pytest.mark.plain]
PIECES = [*SPECIAL_TOKENS, *"abe,.中文", "##b", "##c", "##d"]
# An accent, an unknown punctuation mark, Chinese, a word of four tokens, a word without tokens, a word with a comma.
TEXT = "e\u0301! 中文  abcd \x01 a,b"
WORDS = [("e\u0301!", 0, 0, 3, [1, 2]), ("中文", 1, 4, 6, [3, 4]), ("abcd", 2, 8, 12, [5, 6, 7, 8])]
WORDS += [("a,b", 4, 15, 18, [9, 10, 11])]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    directory = tmp_path_factory.mktemp("model")
    (directory / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    config = tiny_config(vocab_size=len(PIECES), initializer_range=0.5)
    (directory / "bert_config.json").write_text(config.to_json_string())
    keras.utils.set_random_seed(1)
    weights = checkpoints.named_variables(BertEncoder(config).weights)
    checkpoints.write_checkpoint(str(directory / "bert_model.ckpt"), weights)
    return str(directory)


@pytest.fixture(scope="module")
def encoder(model):
    return bert_tf.SentenceEncoder.from_pretrained(model)


@pytest.mark.parametrize(("pooling", "pool"), [("mean", np.mean), ("first", lambda states, axis: states[0])])
def test_words_have_the_vectors_of_their_tokens(encoder, pooling, pool):
    found = encoder.encode_words([TEXT, "\x01", "b"], pooling=pooling, layers=[-1, 0])
    assert [word.text for words, _ in found[1:] for word in words] == ["b"]
    assert [vectors.shape for _, vectors in found] == [(4, 24), (0, 24), (1, 24)]
    words, vectors = found[0]
    last, first = (encoder.bert(TEXT).all_encoder_layers[number][0].numpy() for number in (-1, 0))
    for word, vector, (*expected, positions) in zip(words, vectors, WORDS, strict=True):
        assert word[:4] == tuple(expected) and list(range(12))[word.tokens] == positions
        hidden = [pool(states[positions], axis=0) for states in (last, first)]
        assert_close(vector, np.concatenate(hidden), 1e-5)
        assert TEXT[word.start : word.end] == word.text


def test_given_words_are_not_split(encoder):
    given = ["e\u0301!", "中文 abcd", "\x01", "a,b"]
    [(words, vectors)] = encoder.encode_words([given])
    assert [(word.text, word.index) for word in words] == [(given[i], i) for i in (0, 1, 3)]
    assert [" ".join(given)[word.start : word.end] for word in words] == [given[i] for i in (0, 1, 3)]
    [(_, by_text)] = encoder.encode_words([TEXT])
    assert_close(vectors[[0, 2]], by_text[[0, 3]], 1e-6)
    assert_close(vectors[1], (2 * by_text[1] + 4 * by_text[2]) / 6, 1e-5)


def test_truncated_words_are_left_out_and_counted(model, capsys):
    encoder = bert_tf.SentenceEncoder.from_pretrained(model, max_seq_length=12)
    [(words, vectors), _] = encoder.encode_words([TEXT, "a"])
    assert [word.text for word in words] == [text for text, *_ in WORDS[:3]] and len(vectors) == 3
    assert "x: 1 words are after the first 12 tokens" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("x", "options", "message"),
    [
        ("a", {}, "Use a list of examples"),
        ([["a", 5]], {}, "text 0 is '5'"),
        (["a"], {"pooling": "max"}, "pooling is 'max'"),
        (["a"], {"layers": [2]}, "no layer 2"),
    ],
)
def test_bad_input_is_refused(encoder, x, options, message):
    assert_refused(message, encoder.encode_words, x, **options)


def test_the_program_writes_words(model, write, tmp_path):
    line = "abcd b ||| a,b \x01 e"
    lines = ["  " + line, "", TEXT + " b"]
    path = write("texts.txt", "\n".join(lines))
    flags = [f"--input_file={path}", f"--init_checkpoint={model}", "--layers=0,-1"]
    flags += [f"--output_file={tmp_path}/words.jsonl", "--max_seq_length=13"]
    shown = programs.run("extract_features.py", *flags, "--word_vectors=mean")
    assert "--input_file: 1 words are after the first 13 tokens and were left out" in shown
    first, empty, _ = map(json.loads, (tmp_path / "words.jsonl").read_text().splitlines())
    assert empty == {"linex_index": 1, "features": []}
    bert = bert_tf.load_model(model)
    expected = [("abcd", [1, 2, 3, 4]), ("b", [5]), ("a,b", [7, 8, 9]), ("e", [10])]
    layers = bert(("abcd b", "a,b \x01 e")).all_encoder_layers
    for found, (text, positions) in zip(first["features"], expected, strict=True):
        assert found["token"] == text == line[found["start"] : found["end"]]
        assert [layer["index"] for layer in found["layers"]] == [0, -1]
        for layer in found["layers"]:
            states = layers[layer["index"]][0].numpy()
            assert_close(layer["values"], states[positions].mean(axis=0), 1e-5)
    shown = programs.run("extract_features.py", *flags, "--word_vectors=first", "--pooling=mean", expect=1)
    assert "--word_vectors is not used with --pooling" in shown


def test_words_of_a_pair_share_the_room_of_the_sequence(model):
    tokenizer = bert_tf.load_tokenizer(model)
    for length in range(4, 14):
        *packed, words, truncated = features.pack_words(tokenizer, "abcd a", "b abc", length)
        assert tuple(packed) == tokenizer.pack("abcd a", "b abc", length)[:2]
        tokens = [tokenizer.convert_ids_to_tokens(packed[0][word.tokens]) for word in words]
        assert tokens == [tokenizer.tokenize(word.text) for word in words]
        assert len(words) + truncated == 4
    assert words[-1] == Word("abc", 1, 13, 16, slice(8, 11))
