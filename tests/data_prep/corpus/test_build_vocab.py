import collections
import pathlib
import random

import pytest

from bert_tf.runtime.storage.locks import claimed
from bert_tf.text import FullTokenizer
from bert_tf.text.vocabulary import SPECIAL_TOKENS, check_vocab_file
from data_prep.corpus import files
from data_prep.corpus.files import cut_into_splits, find_input_files
from data_prep.corpus.reader import CorpusOptions
from data_prep.corpus.word_counts import BoundedCounter, add_up, count_words
from data_prep.corpus.wordpiece_learner import learn_vocabulary
from data_prep.workers import Workers
from tests import programs
from tests.conftest import assert_refused
from tests.data_prep.corpora import write_corpus

FIRST = [*SPECIAL_TOKENS, "[unused0]"]


def count(directory, text, num_workers=1, capacity=1000, do_lower_case=True):
    splits = cut_into_splits(find_input_files(text), "record")
    rules = {"do_lower_case": do_lower_case, "kept_tokens": ["[URL]"]}
    jobs = [(pieces, CorpusOptions("record"), rules, capacity) for pieces in splits]
    with Workers(num_workers) as workers:
        return add_up(workers.map("words", count_words, str(directory), jobs, 0, "B"), capacity)


@pytest.fixture
def counts(tmp_path):
    return count(tmp_path / "counts", write_corpus(tmp_path / "text.txt", documents=80)).counts


def test_words_are_those_of_the_tokenizer(tmp_path, write):
    text = write("text.txt", "The café's CAFÉ,[URL]北京\nthe\u00a0the\x0c 'tis\n".replace("\x0c", ""))
    expected = {"the": 3, "cafe": 2, "'": 2, "s": 1, ",": 1, "北": 1, "京": 1, "tis": 1}
    assert count(tmp_path / "lower", text).counts == expected
    assert count(tmp_path / "cased", text, do_lower_case=False).counts["CAFÉ"] == 1


def test_counts_do_not_depend_on_the_number_of_processes(tmp_path, monkeypatch):
    text = write_corpus(tmp_path / "text.txt")
    whole = count(tmp_path / "whole", text)
    monkeypatch.setattr(files, "_SPLIT_BYTES", (400, 400))
    for capacity in (1000, 60):
        one = count(tmp_path / f"one-{capacity}", text, 1, capacity)
        three = count(tmp_path / f"three-{capacity}", text, 3, capacity)
        assert one.counts == three.counts and one.error == three.error
        assert (one.counts == whole.counts) == (one.error == 0) == (capacity == 1000)


def test_forgotten_counts_stay_within_the_stated_error():
    rng = random.Random(0)
    words = [f"w{int(rng.paretovariate(0.7))}" for _ in range(20000)]
    exact = collections.Counter(words)
    counter = BoundedCounter(500)
    for i in range(0, len(words), 1000):
        counter.add(collections.Counter(words[i : i + 1000]).items())
    assert len(counter.counts) <= 500 < len(exact)
    low = [exact[word] - counter.counts[word] for word in exact]
    assert min(low) >= 0 and 0 < max(low) <= counter.error < max(exact.values()) / 10


def test_vocabulary_has_the_size_asked_for_and_its_order(counts):
    alphabet = sorted(set("".join(counts)))
    for size in (60, 97, 150, 201):
        vocabulary = learn_vocabulary(counts, size, FIRST)
        assert len(vocabulary) == len(set(vocabulary)) == size
        assert vocabulary[: len(FIRST)] == FIRST
        assert vocabulary[len(FIRST) : len(FIRST) + len(alphabet)] == alphabet
        assert {f"##{char}" for char in alphabet} <= set(vocabulary)
        assert learn_vocabulary(dict(reversed(counts.items())), size, FIRST) == vocabulary


def test_sizes_out_of_reach(counts):
    everything = learn_vocabulary(counts, 10**6, FIRST)
    assert 500 < len(everything) < 10**4
    assert_refused("--vocab_size is 30, but the special tokens", learn_vocabulary, counts, 30, FIRST)
    assert_refused("no words", learn_vocabulary, {}, 30, FIRST)


def test_rare_characters_are_left_out_of_the_alphabet(counts):
    vocabulary = learn_vocabulary(counts | {"žluťoučký": 1}, 90, FIRST, max_alphabet=len(set("".join(counts))))
    assert not any("ž" in piece for piece in vocabulary)


def test_an_alphabet_of_many_ideographs_covers_the_text(capsys):
    frequent = {chr(0x4E00 + i): 1000 for i in range(1500)}
    rare = {chr(0x6000 + i): 1 for i in range(700)}  # less than 0.05% of the text
    vocabulary = learn_vocabulary(frequent | rare | {"ab": 20_000}, 10**4, FIRST)
    assert frequent.keys() | {"a", "b", "ab", "##a", "##b"} <= set(vocabulary)
    assert len(vocabulary) == len(FIRST) + 1500 + 5  # no ideograph has a token with ##
    assert "Alphabet: 1502 of 2202 characters, which cover 99.95% of the text." in capsys.readouterr().err
    assert len(learn_vocabulary(frequent | rare, 10**4, FIRST, max_alphabet=2200)) == len(FIRST) + 2200
    few = {chr(0x4E00 + i): 1 for i in range(900)} | {"ab": 10**7}
    assert few.keys() <= set(learn_vocabulary(few, 10**4, FIRST))


def test_program_writes_a_vocabulary_that_the_tokenizer_takes_unless_another_one_does(tmp_path):
    text = pathlib.Path(write_corpus(tmp_path / "text.txt", documents=40)).read_text()
    long_text = tmp_path / "long.txt"  # more than one split, for two processes
    long_text.write_text(text * 150)
    vocab = str(tmp_path / "vocab.txt")
    command = ["-m", "data_prep.build_vocab", f"--input_file={long_text}", f"--output_file={vocab}", "--vocab_size=120"]
    command += ["--reserved_tokens=[E1],[E2]", "--num_unused=3", "--num_workers=2"]
    with claimed(f"{vocab}.work", "--output_file", "vocabulary"):
        assert "does the same work in" in programs.run(*command, expect=1)
    output = programs.run(*command)
    assert "counts are exact" in output and "120 tokens" in output
    check_vocab_file(vocab)
    pieces = (tmp_path / "vocab.txt").read_text().splitlines()
    assert pieces[:10] == [*SPECIAL_TOKENS, "[E1]", "[E2]", "[unused0]", "[unused1]", "[unused2]"]
    assert len(pieces) == 120
    assert "[UNK]" not in FullTokenizer(vocab).tokenize(text)
    assert not list(tmp_path.glob("vocab.txt.*"))
