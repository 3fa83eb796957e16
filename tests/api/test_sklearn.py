"""Tests estimators in scikit-learn's cross-validation and parameter search."""

import numpy as np
import pytest
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.calibration import CalibratedClassifierCV
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.validation import check_is_fitted

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
@pytest.mark.parametrize("bad", ["1.0", "2", "b ", 2, 2.0, True])
def test_classes_of_any_type_are_scored_in_a_pipeline(pretrained, bad):
    good = type(bad)(10) if bad not in (True, "b ") else {True: False, "b ": "a"}[bad]
    labels = [good if label == "pos" else bad for label in LABELS]
    pipeline = make_pipeline(
        FunctionTransformer(lambda texts: [text.strip() for text in texts]),
        bert_tf.Classifier.from_pretrained(pretrained, **LENGTH, **LEARN),
    )
    with pytest.raises(NotFittedError):
        check_is_fitted(pipeline)
    pipeline.fit(TEXTS, labels, classifier__verbose=0)
    check_is_fitted(pipeline)
    classes, probabilities = pipeline.classes_, pipeline.predict_proba(TEXTS)
    assert classes.tolist() == np.unique(labels).tolist()
    assert list(map(type, classes.tolist())) == [type(bad)] * 2
    assert accuracy_score(labels, pipeline.predict(TEXTS)) == pipeline.score(TEXTS, labels) == 1.0
    assert log_loss(labels, probabilities) < 0.5
    assert roc_auc_score(np.array(labels) == classes[1], probabilities[:, 1]) == 1.0
    calibrated = CalibratedClassifierCV(FrozenEstimator(pipeline)).fit(TEXTS, labels)
    assert calibrated.predict(TEXTS).tolist() == labels


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
    several = bert_tf.Classifier.from_pretrained(pretrained, ["a", "b"], multi_label=True, **settings)
    rows = np.array([[1, label == "neg"] for label in LABELS], int)
    scores = cross_val_score(several, TEXTS, rows, cv=2, scoring="f1_micro", params={"verbose": 0})
    assert (scores >= 0).all()  # no NaN
    pipeline = make_pipeline(bert_tf.Classifier.from_pretrained(pretrained, **settings))
    search = GridSearchCV(pipeline, {"classifier__learning_rate": [1e-3]}, cv=2, scoring="accuracy")
    assert 0 < search.fit(TEXTS, LABELS, classifier__verbose=0).best_score_ <= 1
