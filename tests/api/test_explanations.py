"""Tests the scores of words for a prediction, which are integrated gradients."""

import numpy as np
import pytest
import tensorflow as tf

import bert_tf
from bert_tf import export
from bert_tf.finetuning import explanations
from tests.api.tiny import LABELS, TEXTS
from tests.conftest import assert_close, assert_refused

pytestmark = [pytest.mark.plain, pytest.mark.eager]
TEXT, OTHER = "fine words, a  POOR day", "here a"
STARTS = [0, 5, 12, 15, 20]


def fitted(kind, pretrained, y, x=TEXTS, **options):
    """Returns an estimator after one step, with a large output layer and without dropout in its predictions."""
    estimator = kind.from_pretrained(pretrained, max_seq_length=16, **options)
    estimator.fit(x, y, num_train_steps=1, learning_rate=0.1, batch_size=8)
    return estimator


def by_table(model, sequence, baseline, segments, column, steps=64):
    """Returns the score of each token. Each point has its own rows in a larger table of word embeddings."""
    size, length = model.config.vocab_size, len(sequence)
    wide = type(model)(model.config.replace(vocab_size=size + length), model.head.outputs)
    table = np.array(model.encoder.embeddings.word_embeddings)
    for variable, other in zip(wide.variables, model.variables, strict=True):
        variable.assign(np.vstack([table, table[sequence]]) if "word_embeddings" in variable.path else other)
    words, total = wide.encoder.embeddings.word_embeddings, np.zeros(length)
    batch = {"input_ids": size + np.arange(length), "segment_ids": segments, "input_mask": np.ones(length)}
    batch = {name: tf.cast([row], tf.int32) for name, row in batch.items()}
    for point in (np.arange(steps) + 0.5) / steps:
        words.assign(np.vstack([table, table[baseline] + point * (table[sequence] - table[baseline])]))
        with tf.GradientTape() as tape:
            logit = wide.logits(batch)[0, column]
        gradient = tf.convert_to_tensor(tape.gradient(logit, words.value)).numpy()[size:]
        total += (gradient * (table[sequence] - table[baseline])).sum(axis=-1) / steps
    return total


def test_scores_are_integrated_gradients_of_the_predicted_class(pretrained):
    classifier = fitted(bert_tf.Classifier, pretrained, LABELS)
    run = classifier._loaded(classifier._predicted([(TEXT)], 8)[0])
    for variable in run.model.variables:  # so that the logits are not linear in the embeddings
        if variable.path.endswith(("kernel", "word_embeddings")):
            variable.assign(10 * variable)
    factor = 5 / abs(classifier.explain([TEXT])[0].difference)
    run.model.head.output_weights.assign(factor * run.model.head.output_weights)
    (found,) = classifier.explain([TEXT])
    assert [(word.word, word.start, word.end) for word in found.words] == [
        (word, start, start + len(word)) for word, start in zip(TEXT.split(), STARTS, strict=True)
    ]
    vocab = run.tokenizer.vocab
    ids = np.array(run.tokenizer.pack(TEXT, None, 16).ids)
    baseline = np.array([vocab["[CLS]"], *[vocab["[MASK]"]] * (len(ids) - 2), vocab["[SEP]"]])
    logits = [
        run.model.logits({"input_ids": [row], "segment_ids": [[0] * len(ids)], "input_mask": tf.ones([1, len(ids)])})[0]
        for row in (ids, baseline)
    ]
    column = classifier.labels.index(classifier.predict([TEXT])[0])
    assert found.label == classifier.labels[column]
    assert found.difference == pytest.approx(float((logits[0] - logits[1])[column]), abs=1e-5)
    tokens = by_table(run.model, ids, baseline, [0] * len(ids), column)
    limit = 0.02 * max(1, abs(found.difference))
    assert abs(sum(word.score for word in found.words) - found.difference) <= limit
    # "words," has two tokens.
    expected = [tokens[1], tokens[2] + tokens[3], *tokens[4:-1]]
    assert_close([word.score for word in found.words], expected, 2 * limit)
    assert np.abs(expected).max() > 10 * limit
    assert found._repr_html_().count("<td ") == 5


@pytest.mark.parametrize(
    ("options", "label"),
    [
        ({"dtype": "bfloat16", "freeze_encoder": True}, None),
        ({"long_documents": "windows", "doc_stride": 2, "max_seq_length": 6}, None),
        ({"multi_label": True, "label_threshold": 0.01}, ["neg", "pos"]),
    ],
)
def test_scores_add_up_for_every_model(pretrained, options, label):
    labels = [[label] for label in LABELS] if label else LABELS
    classifier = bert_tf.Classifier.from_pretrained(pretrained, **{"max_seq_length": 16} | options)
    classifier.fit(TEXTS, labels, num_train_steps=1, learning_rate=0.1)
    for text, several in zip([TEXT, "poor"], classifier.explain([TEXT, "poor"]), strict=True):
        found = several if label else [several]
        assert [explanation.label for explanation in found] == (label or classifier.predict([text]))
        for explanation in found:
            total = sum(word.score for word in explanation.words)
            assert abs(total - explanation.difference) <= 0.02 * max(1, abs(explanation.difference))
            assert "".join(word.word for word in explanation.words) == text.replace(" ", "")


def test_numbers_pairs_and_tags_are_explained(pretrained, tmp_path):
    pairs = [(text, OTHER) for text in TEXTS]
    regressor = fitted(bert_tf.Regressor, pretrained, np.arange(24.0), pairs)
    (found,) = regressor.explain([(TEXT, OTHER)])
    masked = " ".join(["[MASK]"] * 6), "[MASK] [MASK]"
    change = regressor.predict([(TEXT, OTHER), masked])
    assert found.difference == pytest.approx(float(change[0] - change[1]), abs=1e-4)
    assert [(word.word, word.start, word.text) for word in found.words[-2:]] == [("here", 0, 1), ("a", 5, 1)]
    words = [["a", "fine", "day"], ["poor", "words", "here"]] * 4
    tagger = fitted(bert_tf.TokenClassifier, pretrained, [["B-X", "I-X", "B-Y"], ["B-Y", "B-X", "I-X"]] * 4, words)
    task, sentences, features, outputs = tagger._predicted(words[:2], 8)
    tags = [row for row, _ in task.decode(sentences, features, outputs)]
    for row, several in zip(tags, tagger.explain(words[:2]), strict=True):
        assert [(one.index, one.label) for one in several] == [(i, tag) for i, tag in enumerate(row) if tag != "O"]
        for one in several:
            total = sum(word.score for word in one.words)
            assert abs(total - one.difference) <= 0.02 * max(1, abs(one.difference))
    assert any(tag != "O" for row in tags for tag in row)
    regressor.export(tmp_path / "served")
    served = export.load(tmp_path / "served")
    assert_refused("an exported model has no gradients", served.explain, [TEXT])
    choices = fitted(bert_tf.MultipleChoice, pretrained, [0] * 4, [("a", ["fine", "poor"])] * 4)
    assert_refused("a MultipleChoice has no explanations", choices.explain, [("a", ["fine", "poor"])])


def test_scores_that_do_not_add_up_are_reported(pretrained, monkeypatch, capsys):
    classifier = fitted(bert_tf.Classifier, pretrained, LABELS)
    monkeypatch.setattr(explanations, "_TOLERANCE", 0.0)
    monkeypatch.setattr(explanations, "_MOST", 32)
    classifier.explain([TEXT])
    assert "Warning: the scores add up to" in capsys.readouterr().err
