"""Every estimator learns, and all forms of the trained model give the same answers."""

import functools

import numpy as np
import pytest
import tensorflow as tf

import bert_tf
from bert_tf import convert_checkpoint, export
from bert_tf.checkpoints import run_record
from bert_tf.serving.export_config import ExportConfig
from tests.api.tiny import BAD, GOOD, LABELS, LEARN, TEXTS
from tests.conftest import assert_close, assert_refused

pytestmark = pytest.mark.plain

SENTENCES = [text.split() for text in TEXTS]
TAGS = [["B-ADJ" if word in ("fine", "poor") else "O" for word in words] for words in SENTENCES]
# Half of the examples have a third ending.
CHOICES = [("a day", [BAD[0], GOOD[0]][:: (-1) ** i] + [BAD[1]] * (i % 4 > 1)) for i in range(24)]
CONTEXTS = ["a fine day here", "poor words a day", "here fine words", "a poor day words"] * 6
QUESTIONS = [("fine words" if "fine" in context else "poor words", context) for context in CONTEXTS]
ANSWERS = ["fine" if "fine" in context else ("poor", context.index("poor")) for context in CONTEXTS]
SPANS = {"doc_stride": 4, "max_query_length": 4, "max_answer_length": 3}
SCORES = [100.0 if "fine" in text else 200.0 for text in TEXTS]
NAMES, SPLIT = {"labels": ["pos", "neg"]}, {"validation_split": 0.25}
DEV = {"validation_data": (SENTENCES[:4], TAGS[:4])}
# Class -> the data, the right predictions for four examples, arguments of `from_pretrained` and `fit`, the score of a
# model without mistakes, and the method whose answers have the most details.
CASES = {
    "Classifier": ((TEXTS, LABELS), LABELS[:4], NAMES, SPLIT | {"evaluate_every": 30}, 1.0, "predict_proba"),
    "MultipleChoice": ((CHOICES, [1, 0] * 12), [1, 0, 1, 0], {}, {}, 1.0, "predict_proba"),
    "TokenClassifier": ((SENTENCES, TAGS), TAGS[:4], {}, DEV, 1.0, "predict_proba"),
    "QuestionAnswerer": ((QUESTIONS, ANSWERS), ["fine", "poor"] * 2, SPANS, SPLIT, 100.0, "predict_n_best"),
}


@functools.cache
def trained(pretrained, name):
    """Returns the estimator of a case after its training, and the scores that `fit` returned."""
    (x, y), _, options, settings, *_ = CASES[name]
    estimator = getattr(bert_tf, name).from_pretrained(pretrained, max_seq_length=16, **options)
    assert_refused("no trained model yet", estimator.predict, x)
    return estimator, estimator.fit(x, y, **LEARN | settings)


@pytest.mark.parametrize("name", CASES)
def test_a_saved_model_gives_the_answers_of_the_trained_one(pretrained, tmp_path, name):
    (x, y), right, options, _, best, details = CASES[name]
    (estimator, _), kind = trained(pretrained, name), getattr(bert_tf, name)
    assert estimator.predict(x[:4]) == right
    assert estimator.score(x, y) == best
    answers = getattr(estimator, details)(x[:4])
    saved = str(tmp_path / "saved")
    estimator.save(saved)
    assert_refused("already exists", estimator.save, saved)
    for form in (kind.load(saved), kind.from_pretrained(saved, max_seq_length=16, **options)):
        np.testing.assert_equal(getattr(form, details)(x[:4]), answers)
        assert form.predict(x[:4]) == right
    for other in CASES.keys() - {name}:
        assert_refused(f"has a run of .*Use {name}.load", getattr(bert_tf, other).load, saved)


def test_probabilities_of_classes_are_those_of_the_export_even_for_blank_texts(pretrained, tmp_path, caplog):
    classifier, scores = trained(pretrained, "Classifier")
    assert scores["eval_accuracy"] == classifier.evaluate(TEXTS, LABELS)["accuracy"] == 1.0
    assert [line["kind"] for line in classifier.history()].count("eval") == 2  # after 30 steps, and at the end
    texts = [*TEXTS[:4], "", "   "]
    probabilities = classifier.predict_proba(texts)
    assert_close(probabilities.sum(axis=1), 1, 1e-5)
    classifier.export(tmp_path / "exported")
    assert not caplog.messages
    served = bert_tf.export.load(tmp_path / "exported")
    assert_close(served(text_a=texts)["probabilities"], probabilities, 1e-5)
    assert_refused("example 1: the text is empty", classifier.evaluate, [TEXTS[0], ""], LABELS[:2])


def test_missing_endings_have_no_probability(pretrained):
    chooser, _ = trained(pretrained, "MultipleChoice")
    probabilities = chooser.predict_proba(CHOICES[1:4])
    assert (probabilities > 0).tolist() == [[True, True, False], [True] * 3, [True] * 3]
    assert_close(probabilities.sum(axis=1), np.ones(3), 1e-6)
    assert chooser.predict_proba([("a day", [*BAD, *GOOD])]).shape == (1, 4)
    exported = export.build(chooser.output_dir, ExportConfig(dtype="bfloat16"))
    assert exported.settings["problem"] == "choice"
    assert tf.bfloat16 in {variable.dtype for variable in exported.served.variables}


def test_entities_and_probabilities_of_tags(pretrained):
    tagger, _ = trained(pretrained, "TokenClassifier")
    assert tagger.evaluate(SENTENCES, TAGS)["f1"] == 1.0
    unknown = [TAGS[0], ["O", "O", "NOUN"]]
    assert_refused("^sentence 1: the tag is 'NOUN'", tagger.evaluate, SENTENCES[:2], unknown)
    for words, row, found in zip(SENTENCES[:4], TAGS, tagger.predict_entities(SENTENCES[:4]), strict=False):
        places = [(i, i + 1) for i, tag in enumerate(row) if tag != "O"]
        assert [(entity.start, entity.end) for entity in found] == places
        assert [(entity.type, entity.text) for entity in found] == [("ADJ", words[i]) for i, _ in places]
        assert all(0.5 < entity.score <= 1 for entity in found)
    probabilities = tagger.predict_proba(SENTENCES[:4])
    assert tagger.labels == ["O", "B-ADJ", "I-ADJ"]
    assert [[tagger.labels[i] for i in row.argmax(axis=-1)] for row in probabilities] == TAGS[:4]
    assert all(np.allclose(row.sum(axis=-1), 1) for row in probabilities)


def test_several_answers_no_context_and_other_windows(pretrained):
    answerer, scores = trained(pretrained, "QuestionAnswerer")
    assert scores == {"exact_match": 100.0, "f1": 100.0}
    assert answerer.evaluate(QUESTIONS, ANSWERS)["exact_match"] == 100.0
    best = answerer.predict_n_best(QUESTIONS[:2])
    assert [entries[0]["text"] for entries in best] == ["fine", "poor"]
    assert sum(entry["probability"] for entry in best[0]) == pytest.approx(1)
    nothing = ("fine words", "")
    assert answerer.predict([nothing, QUESTIONS[0]]) == ["", "fine"]
    assert answerer.predict_n_best([nothing, QUESTIONS[0]]) == [[], best[0]]
    longer = {"output_dir": answerer.output_dir, **SPANS, "max_seq_length": 20, "doc_stride": 5}
    assert bert_tf.QuestionAnswerer.from_pretrained(pretrained, **longer).predict(QUESTIONS[:1]) == ["fine"]
    for length in (16, 5000):
        assert_refused("max_seq_length", bert_tf.QuestionAnswerer.from_pretrained, pretrained, max_seq_length=length)
    assert_refused(r"pair \(question, context\)", answerer.predict, ["a question"])


def test_scores_far_from_0_are_learned_and_predicted_by_every_form_of_the_model(pretrained, tmp_path):
    regressor = bert_tf.Regressor.from_pretrained(pretrained, output_dir=tmp_path / "run", max_seq_length=16)
    regressor.fit(TEXTS, SCORES, **LEARN)
    right = regressor.predict(TEXTS[:4])
    errors = right - SCORES[:4]
    assert np.abs(errors).max() < 10
    scores = regressor.evaluate(TEXTS[:4], SCORES[:4])
    assert scores["mae"] == pytest.approx(np.abs(errors).mean(), rel=1e-4)
    assert scores["rmse"] == pytest.approx(np.sqrt((errors**2).mean()), rel=1e-4)
    assert run_record.recorded(str(tmp_path / "run"))["target_scale"] == [150.0, 50.0]
    regressor.save(tmp_path / "saved")
    regressor.export(tmp_path / "exported")
    for target in ("hf", "tf1"):
        convert_checkpoint.convert(tmp_path / "saved", tmp_path / target, target)
    served = bert_tf.export.load(tmp_path / "exported").predict([{"text": text} for text in TEXTS[:4]])
    assert_close([answer["score"] for answer in served], right, 1e-3)
    starts = [bert_tf.Regressor.from_pretrained(tmp_path / name, max_seq_length=16) for name in ("hf", "saved")]
    for form in (bert_tf.Regressor.load(tmp_path / "saved"), *starts):
        assert_close(form.predict(TEXTS[:4]), right, 1e-3)
    # The new scores have another scale, but the model starts from the same predictions.
    for start in (regressor, starts[0]):
        start.fit(TEXTS[:2], [1.0, 5.0], epochs=1, batch_size=2, learning_rate=1e-12)
        assert_close(start.predict(TEXTS[:4]), right, 1e-2)
