import itertools
import random

import msgspec
import numpy as np
import pytest

from bert_tf.sequences.masking import MaskingPolicy, MaskingVocabulary
from bert_tf.text import FullTokenizer
from data_prep.corpus.files import FileRange, find_input_files
from data_prep.corpus.reader import CorpusOptions
from data_prep.corpus.tokens import CorpusTokenizer, Part, TokenizerOptions, TokenStore, write_part
from data_prep.examples import instances
from data_prep.examples.instances import SegmentRules, plan_examples
from data_prep.examples.original_order import make_examples, read_documents
from data_prep.examples.records import ExampleMaker, ExampleOptions
from data_prep.one_machine import read_tokens
from tests.data_prep.corpora import write_corpus, write_vocab

LENGTH, PREDICTIONS, SHORT = 32, 5, 0.2


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Returns the path of a corpus, a tokenizer, and a token store of the corpus in three parts."""
    directory = tmp_path_factory.mktemp("corpus")
    vocab = write_vocab(directory)
    text = write_corpus(directory / "text.txt", documents=60)
    (file,) = find_input_files(text)
    cuts = [0, file.size // 3, file.size // 2, file.size]
    splits = [[FileRange(file, *cut)] for cut in itertools.pairwise(cuts)]
    parts = []
    for number, split in enumerate(splits):
        tokenized = CorpusTokenizer(CorpusOptions(), TokenizerOptions(vocab, True))
        path = str(directory / f"part-{number}")
        write_part(path, tokenized, split, lambda amount: None)
        parts.append(Part(path, *(tokenized.counts[name] for name in Part._fields[1:])))
    with TokenStore(parts, np.dtype(np.uint16)) as store:
        yield text, FullTokenizer(vocab), store


def plan(store, **changes):
    rules = msgspec.structs.replace(SegmentRules(LENGTH, SHORT, 2, 1), **changes)
    plans = [p for part in range(len(store.parts)) for p in plan_examples(store, part, rules)]
    return np.concatenate([p.keys for p in plans]), np.concatenate([p.examples for p in plans])


def test_store_gives_back_the_corpus(corpus):
    text, tokenizer, store = corpus
    expected = [token for d in read_documents([text], tokenizer) for s in d for token in s]
    assert store.read_tokens(np.array([0]), np.array([1])).tolist() == expected[:1]
    starts = np.arange(0, store.tokens, 7)
    # A span must be inside one part, so spans at the end of a part are shorter.
    ends = np.cumsum([part.tokens for part in store.parts])
    lengths = np.minimum(7, ends[np.searchsorted(ends, starts, side="right")] - starts)
    found = store.read_tokens(starts, lengths)
    assert found.tolist() == [t for s, n in zip(starts, lengths, strict=True) for t in expected[s : s + n]]
    assert store.documents == 60 and len(expected) == store.tokens


def statistics(examples):
    """Returns arrays with the lengths, labels and masks of examples."""
    length_a, length_b, is_random, predictions, first, last = np.array(examples, float).T
    total = length_a + length_b
    return {
        "examples": len(examples),
        "length of A": length_a,
        "length of B": length_b,
        "length": total,
        "full sequences": total == LENGTH - 3,
        "random next": is_random,
        "predictions": predictions,
        "first position": first,
        "last position": last,
    }


def test_distributions_are_the_releases(corpus):
    text, tokenizer, store = corpus
    documents = read_documents([text], tokenizer)
    options = ExampleOptions(LENGTH, PREDICTIONS, True, MaskingPolicy())
    vocabulary = MaskingVocabulary.of(tokenizer.vocab)
    maker = ExampleMaker(options, tokenizer.vocab)
    released, ours, counts = [], [], []
    replacements = np.zeros((2, 2))
    for seed in range(20):
        rules = SegmentRules(LENGTH, SHORT, 2, seed)
        of_seed = list(make_examples(documents, tokenizer, rules, options, random.Random(seed)))
        for e in of_seed:
            length_a = e.segment_ids.index(1) - 2
            sizes = length_a, len(e.input_ids) - length_a - 3
            released.append([*sizes, e.is_random_next, len(e.labels), e.positions[0], e.positions[-1]])
            masked = [e.input_ids[p] for p in e.positions]
            replacements[0] += [masked.count(vocabulary.mask_id), len(masked)]
        keys, examples = plan(store, random_seed=seed)
        values = maker.make_from_tokens(keys, examples, read_tokens(store, examples)[0])
        number = values["masked_lm_weights"].sum(axis=1)
        positions = values["masked_lm_positions"]
        columns = [examples["length_a"], examples["length_b"], examples["is_random_next"], number]
        columns += [positions[:, 0], positions.max(axis=1)]
        ours += np.stack(columns, axis=1).tolist()
        found = np.take_along_axis(values["input_ids"], positions, axis=1)[values["masked_lm_weights"] > 0]
        replacements[1] += [np.sum(found == vocabulary.mask_id), len(found)]
        counts.append((len(of_seed), len(examples)))
    released, ours = statistics(released), statistics(ours)
    differences = np.subtract(*np.transpose(counts))
    assert abs(differences.mean()) < 4 * differences.std() / np.sqrt(len(counts))
    for name in list(released)[1:]:
        one, other = released[name], ours[name]
        # Examples of one document aren't independent, so the deviation of the mean is doubled.
        deviation = 2 * np.sqrt(one.var() / len(one) + other.var() / len(other))
        assert abs(one.mean() - other.mean()) < 3 * deviation, name
    rates = replacements[:, 0] / replacements[:, 1]
    assert np.abs(rates - 0.8 - 0.1 / len(tokenizer.vocab)).max() < 0.01


def test_windows_change_nothing(corpus, monkeypatch):
    keys, examples = plan(corpus[2])
    monkeypatch.setattr(instances, "_SENTENCES_AT_A_TIME", 5)
    monkeypatch.setattr(instances, "_LOOK_UPS_AT_A_TIME", 3)
    found_keys, found = plan(corpus[2])
    np.testing.assert_array_equal(np.sort(keys), np.sort(found_keys))
    np.testing.assert_array_equal(examples[np.argsort(keys)], found[np.argsort(found_keys)])


def test_segments_of_the_text_cover_it(corpus):
    """Without short sequences, each sentence occurs once per duplicate, in the A or the true B of an example."""
    _, _, store = corpus
    _, examples = plan(store, short_seq_prob=0.0, dupe_factor=1, max_seq_length=4000)
    used = np.zeros(store.tokens, int)
    for example in examples:
        used[example["start_a"] :][: example["length_a"]] += 1
        if not example["is_random_next"]:
            used[example["start_b"] :][: example["length_b"]] += 1
    assert (used == 1).all()


def test_examples_are_shuffled_over_the_whole_corpus(corpus):
    """The position of an example in the output is independent of the position in the corpus."""
    _, _, store = corpus
    keys, examples = plan(store, dupe_factor=10)
    origins = np.argsort(np.argsort(examples["start_a"][np.argsort(keys)], kind="stable"))
    places, count = np.arange(len(origins)), len(origins)
    assert abs(np.corrcoef(places, origins)[0, 1]) < 4 / np.sqrt(count)
    assert abs(np.corrcoef(origins[1:], origins[:-1])[0, 1]) < 4 / np.sqrt(count)
    # Each quarter of the output has about a quarter of the examples from each quarter of the corpus.
    table = np.histogram2d(places, origins, bins=4)[0]
    assert np.sum((table - count / 16) ** 2) / (count / 16) < 30
    # Keys are evenly distributed, so shards have about equal size.
    shares = np.histogram(keys.astype(float), bins=8, range=(0, 2.0**64))[0]
    assert np.sum((shares - count / 8) ** 2) / (count / 8) < 25
