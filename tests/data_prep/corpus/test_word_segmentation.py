import itertools
import re

import pytest

from bert_tf.text import FullTokenizer
from bert_tf.text.vocabulary import load_vocab
from data_prep.corpus.word_segmentation import SegmentedTokenizer, load_word_segmenter
from tests.conftest import assert_refused
from tests.data_prep.corpora import FIRSTS, SECONDS, features, make, records, write_chinese

SEGMENTER = "tests.data_prep.corpora:words_of_two_characters"


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("chinese")
    write_chinese(directory)
    return directory


def words_by_masked_characters(directory, output, **options):
    """Returns the numbers of two-character words with zero, one and two predicted characters."""
    pieces = {index: piece for piece, index in load_vocab(str(directory / "vocab.txt")).items()}
    options |= {"max_predictions_per_seq": 6, "whole_word": True}
    paths, _ = make(directory, directory / "text.txt", output=output, **options)
    counts = [0, 0, 0]
    for record in records(paths[0]):
        example = features(record)
        text = [pieces[index] for index in example["input_ids"]]
        predicted = dict(zip(example["masked_lm_positions"], example["masked_lm_ids"], strict=True))
        predicted.pop(0, None)  # padding
        for position, label in predicted.items():
            text[position] = pieces[label]
        for position, (first, second) in enumerate(itertools.pairwise(text)):
            if first in FIRSTS and second in SECONDS:
                counts[(position in predicted) + (position + 1 in predicted)] += 1
    return counts


def test_characters_of_a_chosen_word_are_masked_together(directory):
    none, one, both = words_by_masked_characters(directory, "segmented", word_segmenter=SEGMENTER)
    assert one == 0 and none > both > 100
    # Without a segmenter each character is a word.
    none, one, both = words_by_masked_characters(directory, "plain")
    assert one > both


@pytest.mark.parametrize(
    ("name", "found"),
    [("json:cut", "can't be used"), ("json:__name__", "it is a str"), (".x:y", ""), ("jieba", "")],
)
def test_a_segmenter_that_is_not_there_is_named(name, found):
    assert_refused(f"^--word_segmenter is '{re.escape(name)}'.*{found}", load_word_segmenter, name)


@pytest.mark.parametrize(("name", "found"), [("builtins:enumerate", r"\(tuple\)"), ("builtins:len", r"'2' \(int\)")])
def test_a_segmenter_that_returns_no_words_is_named(directory, name, found):
    segment = SegmentedTokenizer(FullTokenizer(str(directory / "vocab.txt")), name)
    assert_refused(f"--word_segmenter: {name} returned .*{found}. Use a function", segment.encode_to_bytes, "天上")
