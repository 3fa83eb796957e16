"""Tests texts longer than a sequence: the tokens that are read, and one answer for each text."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

import bert_tf
from bert_tf import export
from bert_tf.graphs.text_reader import GraphTextReader
from bert_tf.sequences import packing
from bert_tf.sequences.text_packer import LongDocuments, TextPacker, document_means
from bert_tf.tasks import registry
from bert_tf.tasks.data_config import DataConfig
from bert_tf.tasks.sentences.examples import WeightedExample
from tests.api.conftest import pretrained  # noqa: F401 (a fixture)
from tests.api.tiny import FIT, LEARN
from tests.conftest import assert_close, assert_refused

LENGTH = 10
ENDS = (-1, -2)
MODES = [LongDocuments(), LongDocuments("head_tail"), LongDocuments("windows", 3), LongDocuments("windows")]
# The label depends on the last words, which are beyond the first tokens.
DOCUMENTS = ["words " * length + f"{word} " * 6 for length in (8, 13, 18) for word in ("fine", "poor")] * 4
LABELS = ["pos", "neg"] * 12


def parts_of(tokens, documents):
    """Returns the parts of a text that are read, token by token."""
    room = LENGTH - 2
    if documents.long_documents == "truncate":
        return [tokens[:room]]
    if documents.long_documents == "head_tail":
        middle = slice(2, len(tokens) - 6) if len(tokens) > room else slice(0, 0)
        return [[token for i, token in enumerate(tokens) if i not in range(middle.start, middle.stop)]]
    parts = [tokens[:room]]
    begin = 0
    while begin + room < len(tokens):
        begin += min(documents.doc_stride, room)
        parts.append(tokens[begin : begin + room])
    return parts


@pytest.mark.parametrize("documents", MODES, ids=lambda documents: str(documents.record))
def test_parts_of_texts_in_python_and_in_the_graph(documents, tokenizer):
    texts = [" ".join(itertools.islice(itertools.cycle("abcdefghijklm"), count)) for count in (*range(22), 60)]
    packer = TextPacker(tokenizer, LENGTH, documents)
    packed = [packer.pack_document(text) for text in texts]
    for text, sequences in zip(texts, packed, strict=True):
        tokens = text.split()
        expected = parts_of(tokens, documents)
        found = [tokenizer.convert_ids_to_tokens(ids) for ids, _, _ in sequences]
        assert found == [["[CLS]", *part, "[SEP]"] for part in expected]
        is_truncated = not documents.has_windows and len(tokens) > LENGTH - 2
        assert [cut for *_, cut in sequences] == [is_truncated] * len(expected)
    reader = GraphTextReader(tokenizer, LENGTH, documents=documents)
    if documents.has_windows:
        batch, numbers = reader.read_windows(tf.constant(texts))
        assert numbers.numpy().tolist() == [i for i, sequences in enumerate(packed) for _ in sequences]
    else:
        batch, truncated = reader.read(tf.constant(texts))
        assert truncated.numpy().tolist() == [sequence[-1] for (sequence,) in packed]
    assert batch.ragged(batch.ids).to_list() == [ids for sequences in packed for ids, *_ in sequences]
    assert not tf.reduce_any(batch.segments > 0)


def test_a_quarter_of_what_is_kept_is_the_beginning():
    ids, *_ = packing.pack((range(1000), []), (510, 0), ENDS, keeps_ends=True)
    assert ids == [-1, *range(128), *range(1000 - 382, 1000), -2]  # the numbers of Sun et al. (2019)
    ids, *_ = packing.pack((range(30), range(100, 103)), (6, 3), ENDS, keeps_ends=True)
    assert ids == [-1, 0, 1, 26, 27, 28, 29, -2, 100, 101, 102, -2]


def test_means_of_documents():
    values = np.arange(8, dtype=np.float32).reshape(4, 2)
    means = document_means(values, [1, 3])
    assert means.dtype == np.float32
    assert means.tolist() == [[0, 1], [4, 5]]


@pytest.mark.plain
def test_a_classifier_answers_once_per_document(pretrained, tmp_path):  # noqa: F811
    windows = {"long_documents": "windows", "doc_stride": 5}
    options = {"max_seq_length": LENGTH, "output_dir": tmp_path / "run"}
    classifier = bert_tf.Classifier.from_pretrained(pretrained, **options, **windows)
    fitted = classifier.fit(DOCUMENTS, LABELS, validation_data=(DOCUMENTS[:6], LABELS[:6]), **LEARN)
    assert fitted["eval_accuracy"] == 1
    texts = [*DOCUMENTS[:6], ""]
    probabilities = classifier.predict_proba(texts)
    assert probabilities.shape == (7, 2)
    scores = classifier.evaluate(DOCUMENTS[:6], LABELS[:6])
    of_labels = [row[int(label == "pos")] for row, label in zip(probabilities[:6], LABELS[:6], strict=True)]
    assert_close(scores["loss"], -np.log(of_labels).mean(), 1e-5)
    for change in ({"long_documents": "truncate"}, {"long_documents": "head_tail"}, {**windows, "doc_stride": 6}):
        changed = bert_tf.Classifier.from_pretrained(pretrained, **options, **change)
        assert_refused("long_documents|doc_stride", changed.fit, DOCUMENTS, LABELS, **FIT)

    classifier.save(tmp_path / "saved")
    assert_close(bert_tf.Classifier.load(tmp_path / "saved").predict_proba(texts), probabilities, 0)
    classifier.export(tmp_path / "exported", litert=True)
    models = [export.load(tmp_path / "exported", engine=engine) for engine in ("tensorflow", "litert")]
    for model in models:
        answers = model.predict(texts)
        assert_close([answer["probabilities"] for answer in answers], probabilities, 1e-5)
        assert not any(answer["truncated"] for answer in answers)
    packer = TextPacker(classifier.tokenizer, LENGTH, LongDocuments("windows", 5))
    sequences = packer.pack_document(DOCUMENTS[4])
    ids = packing.pad_all([sequence[:2] for sequence in sequences])
    logits = models[0]._model.signatures["token_ids"](**{name: tf.constant(x) for name, x in ids.items()})["logits"]
    assert_close(answers[4]["logits"], tf.reduce_mean(logits, axis=0), 1e-5)


def test_windows_have_the_weights_of_their_documents(tokenizer):
    rows = [
        WeightedExample(str(length), "a " * length, None, label, weight)
        for length, label, weight in [(3, "x", 1.0), (20, "y", 2.0)]
    ]

    def features_of(documents):
        config = DataConfig("text", documents=documents)
        task = registry.build_task(config, "", do_train=True, examples={"train": rows})
        return task.featurize(task.examples("train"), TextPacker(tokenizer, LENGTH, documents))

    features = features_of(LongDocuments("windows"))
    assert len(features) == 4
    assert features.windows.tolist() == [1, 3]
    assert features.per_example["sample_weights"].tolist() == [1, 2, 2, 2]
    assert features.document_values("label_ids").tolist() == [0, 1]
    assert features.num_truncated == 0
    assert features_of(LongDocuments("head_tail")).num_truncated == 1


def test_settings_that_do_not_fit_are_refused():
    assert_refused("--doc_stride", LongDocuments, "head_tail", 5)
    assert_refused("--doc_stride", LongDocuments, "windows", 0)
    assert_refused("--long_documents", LongDocuments, "all")
