import dataclasses

import numpy as np
import pytest

from bert_tf.finetuning.models import NO_TAG
from bert_tf.finetuning.task import SplitOutputs
from bert_tf.sequences.text_packer import TextPacker
from bert_tf.tasks.data_config import DataConfig
from bert_tf.tasks.tagging.tagging_task import TaggingTask
from bert_tf.tasks.tagging.windows import windows
from tests.conftest import assert_refused

IOB1 = """-DOCSTART- -X- O O

a NN I-NP I-ORG
bcd NN I-NP O

e NN I-NP I-PER

-DOCSTART- -X- O O

f NN I-NP I-PER
g NN I-NP B-PER
"""


def task_of(write, text=IOB1, test=None, types=None, **settings):
    paths = {"train": write("train.txt", text), "test": write("test.txt", test or text)}
    return TaggingTask(DataConfig("ner", **settings), paths, types)


def test_classes_are_iob2_for_every_scheme_and_the_file_is_read_once(write, capsys):
    task = task_of(write, IOB1.replace("e NN", "# id 7 x\ne NN"))
    assert task.scheme == "iob1"
    task = task.replace(held_out=0.5)
    assert [len(task.split(name)) for name in ("train", "dev")] == [2, 1]
    task = task.replace(held_out=0.0)
    assert task.labels == ("ORG", "PER")
    assert task.tags == ("O", "B-ORG", "I-ORG", "B-PER", "I-PER")
    assert capsys.readouterr().err.count("reading the words") == 1


def test_the_first_piece_has_the_word_s_tag_and_the_input_contains_the_document(write, tokenizer):
    task = task_of(write)
    features = task.featurize(task.examples("train"), TextPacker(tokenizer, 16))
    batch = features.batch(np.arange(3), 7)
    tokens = [tokenizer.convert_ids_to_tokens(row.tolist()) for row in batch["input_ids"]]
    assert tokens[0] == tokens[1] == ["[CLS]", "a", "b", "##c", "##d", "e", "[SEP]"]
    assert batch["tag_ids"].tolist() == [
        [NO_TAG, 1, 0, NO_TAG, NO_TAG, NO_TAG, NO_TAG],
        [NO_TAG, NO_TAG, NO_TAG, NO_TAG, NO_TAG, 3, NO_TAG],
        [NO_TAG, 3, 3, NO_TAG, NO_TAG, NO_TAG, NO_TAG],
    ]
    assert not batch["segment_ids"].any()
    assert features.word_tag_ids().tolist() == [1, 0, 3, 3, 3]
    assert [list(row) for row in features.by_sentence(features.word_tag_ids())] == [[1, 0], [3], [3, 3]]
    alone = task_of(write, document_context=False)
    assert alone.featurize(alone.examples("train"), TextPacker(tokenizer, 16)).lengths.tolist() == [6, 3, 4]


@pytest.mark.parametrize("test", [IOB1, "a O\nb B-ORG\n", "a O\n", "a B-NEW\n", "a\n"])
def test_test_sets_have_tags_only_if_all_are_valid(write, test):
    task = task_of(write, test=test)
    assert task.has_labels(task.examples("test")) == ("ORG" in test)


def test_words_without_pieces_have_a_tag(write, tokenizer):
    task = task_of(write, "\u200b B-X\na O\n")
    features = task.featurize(task.examples("train"), TextPacker(tokenizer, 8))
    assert features.word_tag_ids().tolist() == [1, 0]
    assert features.batch(np.array([0]), 4)["input_ids"][0, 1] == tokenizer.vocab["[UNK]"]


def test_a_long_sentence_is_split_into_windows_and_no_word_is_lost(write, tokenizer):
    letters = "abcdefghijklmnopqrstuvwxyz"
    text = "".join(f"{x}{x if x in 'abc' else ''} {'B-X' if i % 3 else 'O'}\n" for i, x in enumerate(letters))
    task = task_of(write, text + "\na O\n")
    features = task.featurize(task.examples("train"), TextPacker(tokenizer, 9))
    assert features.lengths.max() == 9
    first_pieces = [tokenizer.encode(word)[0] for sentence in task.examples("train") for word in sentence.words]
    batch = features.batch(np.arange(len(features)), 9)
    assert features.at_words(batch["input_ids"]).tolist() == first_pieces
    assert (batch["tag_ids"] != NO_TAG).sum() == len(first_pieces)  # each word is trained on once


@pytest.mark.parametrize(("lengths", "room"), [((3, 2, 4), 5), ((1, 12, 2), 6), ((2, 2), 100), ((7,), 3)])
def test_every_window_has_the_greatest_length_and_contains_its_words(lengths, room):
    pieces = sum(lengths)
    found = windows(lengths, range(pieces), pieces, room)
    assert [word for window in found for word in window.words] == list(range(pieces))
    for window in found:
        assert window.end - window.begin == min(room, pieces)
        assert window.begin <= window.words[0]
        assert window.words[-1] < window.end


def outputs_for(features, tag_ids):
    """Returns the outputs of a model that predicts the given tags for all words, in order."""
    tags = np.zeros((len(features), int(features.lengths.max())), np.int32)
    tags[features.word_windows, features.word_positions] = tag_ids
    return {"tags": tags, "tag_probabilities": tags[..., np.newaxis], "loss_sum": np.ones(len(features))}


def test_scores_and_confusion_count_entities_and_words(write, tokenizer):
    task = task_of(write)
    features = task.featurize(task.examples("train"), TextPacker(tokenizer, 16))
    scores = task.scores(outputs_for(features, [1, 0, 0, 3, 4]), features)
    assert scores["accuracy"] == 0.6
    assert (scores["f1_ORG"], scores["recall_PER"], scores["loss"]) == (1.0, 0.0, 0.6)
    counts, names = task.confusion(outputs_for(features, [1, 0, 0, 3, 4]), features)
    assert names == ("O", "ORG", "PER")
    assert counts.tolist() == [[1, 0, 0], [0, 1, 0], [1, 0, 2]]


def test_wrong_entities_are_listed_once(write, tokenizer):
    task = task_of(write, "a B-X\nb I-X\nc O\nd B-Y\n\na B-X\n")
    sentences = task.split("train")
    features = task.featurize(sentences, TextPacker(tokenizer, 16))
    predicted = [task.tags.index(tag) for tag in ("B-X", "O", "O", "B-X", "B-X")]
    rows = task.compared(SplitOutputs("dev", sentences, outputs_for(features, predicted), features))
    spans = {(row["entity"], row["start"], row["end"], row["label"], row["prediction"]) for row in rows}
    assert spans == {("a", 0, 1, "", "X"), ("a b", 0, 2, "X", ""), ("d", 3, 4, "Y", "X")}
    assert {row["text"] for row in rows} == {"a b c d"}


def test_predictions_are_written_in_the_scheme_of_training(write, tokenizer, tmp_path):
    task = task_of(write, test="a\nbcd\n\ne\n")
    examples = task.examples("test")
    features = task.featurize(examples, TextPacker(tokenizer, 16))
    (path,) = task.write_predictions(
        str(tmp_path), SplitOutputs("test", examples, outputs_for(features, [3, 3, 1]), features)
    )
    assert (tmp_path / "test_predictions.conll").read_text() == "a I-PER\nbcd B-PER\n\ne I-ORG\n"
    assert path == str(tmp_path / "test_predictions.conll")
    test = write("test.jsonl", '{"tokens": ["x", "y"], "clean": ["a"], "ner_tags": ["B-PER"]}\n')
    task = TaggingTask(DataConfig("ner", word_column="clean"), {"test": test}, ["ORG", "PER"])
    examples = task.examples("test")
    features = task.featurize(examples, TextPacker(tokenizer, 16))
    task.write_predictions(str(tmp_path), SplitOutputs("test", examples, outputs_for(features, [1]), features))
    assert (tmp_path / "test_predictions.conll").read_text() == "a B-ORG\n\n"


def test_bad_sentences(write, capsys):
    assert_refused(r"train\.txt, line 2: the row has 3 columns", task_of(write, "a O\nb O x\n").examples, "train")
    task = task_of(write, "a O\nb O x\n\nc B-X\n", on_bad_row="skip")
    assert [sentence.words for sentence in task.examples("train")] == [("c",)]
    assert "1 rows skipped" in capsys.readouterr().err
    assert_refused("line 3: unknown label 'ORG'", task_of(write, types=["PER"]).examples, "train")
    nothing = task_of(write, "a O\n")
    assert_refused("every tag is O", nothing.check_training_set, nothing.examples("train"))


def test_features_do_not_depend_on_the_number_of_processes(write, tokenizer):
    task = task_of(write, "".join(f"{x} O\nb B-X\n\n" for x in "acdefghij" * 70))
    one, two = (task.featurize(task.examples("train"), TextPacker(tokenizer, 8), workers) for workers in (1, 2))
    for field in dataclasses.fields(one):
        if isinstance(getattr(one, field.name), np.ndarray):
            np.testing.assert_array_equal(getattr(one, field.name), getattr(two, field.name))


def test_plain_tags_are_the_classes_and_have_entities_only_with_o(write, tokenizer):
    speech = task_of(write, "a DET\nbcd NOUN\n\ne VERB\n", test="a DET\nbcd X\n")
    assert (speech.scheme, speech.tags, speech.selection_metric) == ("plain", ("DET", "NOUN", "VERB"), "accuracy")
    features = speech.featurize(speech.examples("train"), TextPacker(tokenizer, 16))
    assert features.word_tag_ids().tolist() == [0, 1, 2]
    scores = speech.scores(outputs_for(features, [0, 1, 1]), features)
    assert scores == {"accuracy": pytest.approx(2 / 3), "loss": pytest.approx(2 / 3)}
    assert speech.confusion(outputs_for(features, [0, 1, 1]), features)[1] == speech.labels
    assert not speech.has_labels(speech.examples("test"))  # X is unknown
    types = task_of(write, "a PER\nbcd PER\ne O\nf LOC\n")
    assert (types.scheme, types.tags, types.selection_metric) == ("plain", ("LOC", "O", "PER"), "f1")
    features = types.featurize(types.examples("train"), TextPacker(tokenizer, 16))
    scores = types.scores(outputs_for(features, [2, 1, 1, 0]), features)
    assert (scores["f1_LOC"], scores["f1_PER"], scores["accuracy"]) == (1.0, 0.0, 0.75)
    assert types.input_settings()["tag_scheme"] == "plain"
    assert "tag_scheme" not in task_of(write).input_settings()  # as in older runs
    forced = task_of(write, "a PER\nb O\n", tag_scheme="iob2")
    assert_refused(r"line 1: the tag is 'PER'.*--tag_scheme", forced.examples, "train")
