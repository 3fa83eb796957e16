import numpy as np
import pytest

from bert_tf.tasks import metrics


def test_classification_scores():
    predictions, labels = np.array([1, 0, 1, 1, 0]), np.array([1, 0, 0, 1, 1])
    assert metrics.accuracy(predictions, labels) == {"accuracy": 0.6}
    assert metrics.accuracy_and_f1(predictions, labels) == pytest.approx({"accuracy": 0.6, "f1": 2 / 3})
    # Class 1: 2/3 as above; class 0: precision 1/2, recall 1/2.
    assert metrics.accuracy_and_macro_f1(predictions, labels)["macro_f1"] == pytest.approx((2 / 3 + 1 / 2) / 2)
    # (TP TN - FP FN) / sqrt(3 * 3 * 2 * 2)
    assert metrics.matthews_correlation(predictions, labels)["matthews_correlation"] == pytest.approx((2 - 1) / 6)
    one_class, labels = np.zeros(4, np.int32), np.array([0, 1, 1, 0])
    assert metrics.matthews_correlation(one_class, labels)["matthews_correlation"] == 0.0
    assert metrics.accuracy_and_f1(one_class, labels) == {"accuracy": 0.5, "f1": 0.0}
    assert metrics.accuracy_and_f1(one_class, one_class) == {"accuracy": 1.0, "f1": 0.0}  # class 1 does not occur


def test_correlations():
    scores = metrics.pearson_and_spearman(np.array([1.0, 2.0, 4.0]), np.array([0.0, 5.0, 10.0]))
    assert scores["spearman"] == pytest.approx(1.0)
    assert scores["pearson"] == pytest.approx(np.corrcoef([1, 2, 4], [0, 5, 10])[0, 1])
    assert metrics.pearson_and_spearman(np.ones(3), np.arange(3)) == {"pearson": 0.0, "spearman": 0.0}
    assert metrics.pearson_and_spearman(np.arange(3), np.ones(3)) == {"pearson": 0.0, "spearman": 0.0}


def test_several_labels_a_row():
    predictions, labels = np.array([[1, 0, 1], [0, 0, 1]]), np.array([[1, 0, 0], [0, 0, 1]])
    scores = metrics.multi_label_f1(predictions, labels)
    # Overall: 2 correct of 3 predictions and 2 labels. F1 by class: 1, 0, 2/3.
    assert scores == pytest.approx({"micro_f1": 0.8, "macro_f1": (1 + 0 + 2 / 3) / 3, "accuracy": 0.5})


@pytest.mark.parametrize(
    ("labels", "threshold"), [([0, 0, 0], 0.5), ([1, 1, 1], 0.1), ([0, 1, 1], 0.3), ([1, 0, 1], 0.1), ([0, 0, 1], 0.6)]
)
def test_the_best_threshold_is_halfway_between_two_probabilities(labels, threshold):
    assert metrics.best_threshold(np.array([[0.2], [0.4], [0.8]]), np.array(labels)) == pytest.approx(threshold)


def test_entities_count_as_a_whole_and_by_type():
    labels = [["B-A", "I-A", "O", "B-B"], ["B-A", "O"]]
    predictions = [["B-A", "O", "O", "B-B"], ["B-A", "O"]]  # the first is cut short
    scores = metrics.entity_scores(predictions, labels)
    assert (scores["precision"], scores["recall"], scores["f1"]) == pytest.approx((2 / 3, 2 / 3, 2 / 3))
    assert (scores["f1_A"], scores["f1_B"]) == (0.5, 1.0)
    assert metrics.entity_scores([["O", "O"]], [["O", "O"]]) == {"precision": 0.0, "recall": 0.0, "f1": 0.0}


def test_confusion_counts_true_and_predicted_classes():
    counts = metrics.confusion(np.array([0, 2, 2]), np.array([0, 1, 2]), 4)
    assert counts.tolist() == [[1, 0, 0, 0], [0, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0]]
    assert metrics.confusion(np.array([0]), np.array([0]), 10_000) is None
