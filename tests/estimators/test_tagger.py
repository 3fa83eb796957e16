"""Taggers: tags, their types, and words as they are given."""

import numpy as np
import pytest

import bert_tf
from bert_tf.runtime.files import InputError
from tests.estimators.tiny import LEARN, TEXTS

pytestmark = pytest.mark.plain


def test_tags(pretrained, tmp_path):
    sentences = [text.split() for text in TEXTS]
    tags = [["B-ADJ" if word in ("fine", "poor") else "O" for word in words] for words in sentences]
    tagger = bert_tf.Tagger.from_pretrained(pretrained, max_seq_length=16)
    tagger.fit(sentences, tags, validation_data=(sentences[:4], tags[:4]), **LEARN)
    assert tagger.predict(sentences[:4]) == tags[:4]
    assert tagger.evaluate(sentences, tags)["f1"] == 1.0
    with pytest.raises(InputError, match=r"^sentence 1: the tag is 'NOUN', but O, or B-"):
        tagger.evaluate(sentences[:2], [tags[0], ["O", "O", "NOUN"]])
    for words, row, found in zip(sentences[:4], tags, tagger.predict_entities(sentences[:4]), strict=False):
        places = [(i, i + 1) for i, tag in enumerate(row) if tag != "O"]
        assert [(entity.start, entity.end) for entity in found] == places
        assert [(entity.type, entity.text) for entity in found] == [("ADJ", words[i]) for i, _ in places]
        assert all(0.5 < entity.score <= 1 for entity in found)
    probabilities = tagger.predict_proba(sentences[:4])
    assert tagger.labels == ["O", "B-ADJ", "I-ADJ"]
    assert [[tagger.labels[i] for i in row.argmax(axis=-1)] for row in probabilities] == tags[:4]
    assert all(np.allclose(row.sum(axis=-1), 1) for row in probabilities)
    tagger.save(str(tmp_path / "saved"))
    assert bert_tf.Tagger.load(str(tmp_path / "saved")).predict(sentences[:4]) == tags[:4]
    assert bert_tf.Tagger.from_pretrained(str(tmp_path / "saved")).labels == tagger.labels
    with pytest.raises(InputError, match="holds a run of 'ner', which is no task of Classifier"):
        bert_tf.Classifier.load(str(tmp_path / "saved"))


def test_a_mark_of_documents_is_no_word(pretrained):
    tagger = bert_tf.Tagger.from_pretrained(pretrained)
    with pytest.raises(InputError, match="sentence 1 has a word that begins with -DOCSTART-"):
        tagger._table([["a", "day"], ["a", "-DOCSTART-X", "day"]], None)


def test_tags_name_their_types(pretrained):
    for labels, expected in (
        (["O", "B-PER", "I-PER", "B-LOC"], ["PER", "LOC"]),
        (["PER", "B-LOC"], ["PER", "B-LOC"]),
        (None, None),
    ):
        tagger = bert_tf.Tagger.from_pretrained(pretrained, labels)
        assert tagger._data_config("").labels == expected
    with pytest.raises(InputError, match="the label of sentence 0 is 'None', but a list of tags is expected"):
        tagger.fit([["a", "day"]], [None])


def test_a_tagger_reads_the_words_as_they_are_given(pretrained):
    tagger = bert_tf.Tagger.from_pretrained(pretrained, ["PER"])
    sentences = [["\ufeffa", "day"], ["\ufeff"]]
    for given in (sentences, sentences[::-1]):
        tagger._check_usable = lambda: None
        read = tagger._read("test", tagger._table(given, None))[1]
        assert [list(sentence.words) for sentence in read] == given
