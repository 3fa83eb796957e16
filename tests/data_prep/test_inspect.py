"""Tests examples as text, counts from metadata files, and files that can't be shown."""

import json
import math
import pathlib
import shutil

import pytest
import tensorflow as tf

from bert_tf.runtime.files import InputError
from bert_tf.sequences.example_format import Feature
from data_prep import inspect
from tests.conftest import assert_refused
from tests.data_prep.corpora import PIECES, features, make, records, write_corpus, write_vocab
from tests.programs import serialize


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("inspect")
    write_vocab(directory)
    write_corpus(directory / "text.txt")
    return directory


@pytest.fixture(scope="module")
def made(directory):
    """Makes two files of examples. Returns the paths and the counts."""
    return make(directory, directory / "text.txt", output="two", num_shards=2, dupe_factor=5)


def shown_counts(text):
    lines = [line.split() for line in text[text.rindex("count") :].strip().splitlines()[2:]]
    return {" ".join(name): float(value) for *name, value in lines}


def test_examples_are_shown_as_text_with_marks():
    tokens = ("[CLS]", "ba", "##co", "[MASK]", "[SEP]", "fu", "##co", "ga", "[SEP]", "[PAD]")
    example = {
        "input_ids": [PIECES.index(token) for token in tokens],
        "input_mask": [1] * 9 + [0],
        "segment_ids": [0] * 5 + [1] * 4 + [0],
        "masked_lm_positions": [3, 6, 7, 0],
        "masked_lm_ids": [PIECES.index("di"), PIECES.index("##la"), PIECES.index("ga"), 0],
        "masked_lm_weights": [1.0, 1.0, 1.0, 0.0],
        "next_sentence_labels": [1],
    }
    assert inspect.describe(example, PIECES) == (
        "9 tokens, 3 to predict; B is from another document\n"
        "  A: [CLS] baco {di -> [MASK]} [SEP]\n"
        "  B: fu{##la -> ##co} {ga} [SEP]"
    )


def test_examples_counts_and_baselines_of_a_set_are_printed(directory, made, capsys):
    paths, counts = made
    vocab = str(directory / "vocab.txt")
    in_first = len(list(records(paths[0])))
    inspect.show(paths, vocab, in_first + 2, with_baselines=True)
    printed = capsys.readouterr().out
    assert printed.count(", example ") == in_first + 2 and f"{paths[1]}, example 2: " in printed
    sums = [json.loads(pathlib.Path(f"{path}.meta.json").read_text())["counts"] for path in paths]
    expected = {name: sum(each[name] for each in sums) for name in sums[0]}
    printed, _, baselines = printed.partition("baseline")
    assert shown_counts(printed) == {"files": 2, **expected} and expected["tokens"] == counts["tokens"]
    expected = inspect.baselines([features(record) for path in paths for record in records(path)], PIECES)
    shown = [line.split("  ")[-1].strip() for line in baselines.splitlines()[2:]]
    assert shown == [f"{value:.4g}" for value in expected.values()]
    share = counts["random_next"] / counts["records"]
    assert expected["next-sentence accuracy, most frequent label"] == max(share, 1 - share)


def test_files_without_metadata_and_without_masks_and_empty_ones_are_shown(directory, capsys):
    [path], counts = make(directory, directory / "text.txt", output="plain", is_masked=False, whole_word=True)
    pathlib.Path(f"{path}.meta.json").unlink()
    (directory / "empty.tfrecord").touch()
    inspect.show([path, str(directory / "empty.tfrecord")], str(directory / "vocab.txt"), 1)
    printed = capsys.readouterr().out
    assert " 0 to predict" in printed and "{" not in printed
    assert shown_counts(printed) == {"files": 2, "records": counts["records"]}


def test_baselines_count_masked_tokens_and_next_sentences():
    ids = [PIECES.index(token) for token in ("[CLS]", "ba", "[SEP]", "ba", "[SEP]", "[PAD]")]
    masked = {"input_ids": ids, "next_sentence_labels": [1], "masked_lm_weights": [1.0, 1.0, 0.0]}
    masked["masked_lm_ids"] = [PIECES.index("ga"), PIECES.index("ga"), 0]
    unmasked = {"input_ids": [*ids[:3], PIECES.index("[UNK]"), *ids[4:]], "next_sentence_labels": [0]}
    found = inspect.baselines([masked, unmasked, unmasked], PIECES)
    third = -sum(share * math.log(share) for share in (1 / 3, 2 / 3))
    assert list(found.values()) == pytest.approx([math.log(len(PIECES)), math.log(3), 1 / 3, third, 2 / 3, 1 / 3])
    assert "masked-LM accuracy, always 'ga'" in found


def test_baselines_of_files_without_examples_are_an_error(directory):
    (directory / "none.tfrecord").touch()
    files = [str(directory / "none.tfrecord")], str(directory / "vocab.txt")
    assert_refused("no tokens to predict", inspect.show, *files, 0, with_baselines=True)


def changed(change):
    return lambda path: path.write_bytes(change(path.read_bytes()))


def renamed(path):
    feature_list = [Feature(name, 8) for name in ("input_ids", "input_mask", "segment_ids")]
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(serialize(feature_list, {feature.name: [0] * feature.length for feature in feature_list}))


@pytest.mark.parametrize(
    ("damage", "has_metadata", "vocab_size", "place", "found"),
    [
        (changed(lambda data: data[:-1]), True, len(PIECES), "FILE: ", "its record"),
        (changed(lambda data: data * 2), True, len(PIECES), "FILE: ", "metadata file"),
        (changed(lambda data: data.replace(b"input_ids", b"inputxids")), False, len(PIECES), "FILE: ", "damaged"),
        (renamed, False, len(PIECES), "example 1", "next_sentence_labels"),
        (None, True, 20, "--vocab_file: ", "another vocabulary"),
        (None, False, 20, "--vocab_file: ", "20 tokens"),
    ],
)
def test_files_that_can_not_be_shown(made, tmp_path, damage, has_metadata, vocab_size, place, found):
    path, vocab = tmp_path / "x.tfrecord", tmp_path / "vocab.txt"
    shutil.copy(made[0][0], path)
    if has_metadata:
        shutil.copy(f"{made[0][0]}.meta.json", f"{path}.meta.json")
    if damage:
        damage(path)
    vocab.write_text("\n".join(PIECES[:vocab_size]) + "\n")
    with pytest.raises(InputError) as raised:
        inspect.show([str(path)], str(vocab), 1)
    assert place in str(raised.value) and found in str(raised.value)


def test_the_largest_id_of_the_vocabulary_is_accepted(made):
    path = made[0][0]
    found = [features(record) for record in records(path)]
    largest = max(max(*example["input_ids"], *example["masked_lm_ids"]) for example in found)
    assert list(inspect.read_examples(path, largest + 1)) == found
    assert_refused(f"contains id {largest}", list, inspect.read_examples(path, largest))
