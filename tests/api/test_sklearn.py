"""Tests estimators in scikit-learn's cross-validation and parameter search."""

import numpy as np
import pytest
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score

import bert_tf
from tests.api import tiny
from tests.api.tiny import LABELS, TEXTS

pytestmark = pytest.mark.plain
LENGTH = {"max_seq_length": 16}
LEARN = {**tiny.LEARN, "learning_rate": 1e-2}


def test_probabilities_are_cross_validated(pretrained):
    classifier = bert_tf.Classifier.from_pretrained(pretrained, **LENGTH, **LEARN)
    assert is_classifier(classifier)
    probabilities = cross_val_predict(classifier, TEXTS, LABELS, cv=2, method="predict_proba", params={"verbose": 0})
    assert (np.array(["neg", "pos"])[probabilities.argmax(axis=1)] == LABELS).all()


def test_a_search_tries_settings_from_the_same_start(pretrained):
    classifier = bert_tf.Classifier.from_pretrained(pretrained, **LENGTH, **LEARN)
    grid = {"learning_rate": [1e-9, LEARN["learning_rate"]], "epochs": [LEARN["epochs"]]}
    scorers = {"score": lambda estimator, x, y: estimator.score(x, y), "roc_auc": "roc_auc"}
    search = GridSearchCV(classifier, grid, cv=2, scoring=scorers, refit="score").fit(TEXTS, LABELS, verbose=0)
    assert classifier._trained_checkpoint is None
    assert search.best_params_ == {"learning_rate": LEARN["learning_rate"], "epochs": LEARN["epochs"]}
    assert [search.cv_results_[f"mean_test_{name}"][search.best_index_] for name in scorers] == [1.0, 1.0]
    assert search.predict(TEXTS[:3]) == LABELS[:3]
    assert search.classes_.tolist() == ["neg", "pos"]
    copy = clone(search.best_estimator_)
    assert (copy._start, copy._fits, copy._settings) == (pretrained, 0, search.best_estimator_._settings)
    assert copy.get_params()["learning_rate"] == LEARN["learning_rate"]
    assert copy.set_params(**copy.get_params())._settings == search.best_estimator_._settings
    with pytest.raises(TypeError, match=r"set_params\(\) has no argument 'learning_rates'"):
        copy.set_params(learning_rates=1)


@pytest.mark.eager
def test_regressors_taggers_and_several_labels_are_cross_validated(pretrained):
    settings = LENGTH | {"epochs": 1, "batch_size": 8}
    scores = [float(label == "pos") for label in LABELS]
    regressor = bert_tf.Regressor.from_pretrained(pretrained, **settings)
    assert is_regressor(regressor)
    errors = cross_val_score(regressor, TEXTS, scores, cv=2, scoring="neg_mean_absolute_error", params={"verbose": 0})
    assert (errors < 0).all()
    tagger = bert_tf.TokenClassifier.from_pretrained(pretrained, **settings)
    tags = [["O", "B-X", "O"]] * len(TEXTS)
    assert cross_val_score(tagger, [text.split() for text in TEXTS], tags, cv=2, params={"verbose": 0}).shape == (2,)
    several = bert_tf.Classifier.from_pretrained(pretrained, multi_label=True, **settings)
    labels = [["a"] if label == "pos" else ["a", "b"] for label in LABELS]
    assert cross_val_score(several, TEXTS, labels, cv=2, params={"verbose": 0}).shape == (2,)
