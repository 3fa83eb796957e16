"""The scores of all tasks, computed by scikit-learn, SciPy and seqeval.

Each function takes predictions and labels, and returns scores by name. Scores are between -1 and 1, except errors.
"""

from collections.abc import Sequence

import numpy as np
from scipy import stats
from seqeval.metrics import classification_report
from sklearn import metrics as sklearn_metrics

# Confusion matrices of more classes would take too much memory.
MAX_CONFUSION_CLASSES = 1000


def confusion(labels: np.ndarray, predictions: np.ndarray, count: int) -> np.ndarray | None:
    """Returns the counts of each true class (row) and predicted class (column) [C, C]; None for too many classes.

    Args:
      labels: the ids of the true classes.
      predictions: the ids of the predicted classes.
      count: the number of classes (C).
    """
    if count > MAX_CONFUSION_CLASSES:
        return None
    return sklearn_metrics.confusion_matrix(labels, predictions, labels=range(count))


def accuracy(predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Returns the fraction of correct predictions."""
    return {"accuracy": float(np.mean(predictions == labels))}


def accuracy_and_f1(predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Returns the accuracy and the F1 of class 1 (MRPC, QQP)."""
    f1 = sklearn_metrics.f1_score(labels, predictions, zero_division=0.0)
    return {"accuracy": float(np.mean(predictions == labels)), "f1": float(f1)}


def accuracy_and_macro_f1(predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Returns the accuracy and the mean F1 of the classes."""
    f1 = sklearn_metrics.f1_score(labels, predictions, average="macro", zero_division=0.0)
    return {"accuracy": float(np.mean(predictions == labels)), "macro_f1": float(f1)}


def multi_label_f1(predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Returns F1 over all decisions, the mean F1 of the classes, and the fraction of rows without an error.

    Args:
      predictions: [N, C] of 0 and 1.
      labels: [N, C] of 0 and 1.
    """
    f1 = {
        f"{average}_f1": float(sklearn_metrics.f1_score(labels, predictions, average=average, zero_division=0.0))
        for average in ("micro", "macro")
    }
    return f1 | {"accuracy": float(np.mean(np.all(predictions == labels, axis=-1)))}


def best_threshold(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Returns the threshold with the best F1 over all decisions; 0.5 if no label is 1.

    All classes have the same threshold. The threshold is halfway between two probabilities, so rounding does not change
    a decision.

    Args:
      probabilities: [N, C].
      labels: [N, C] of 0 and 1.
    """
    if not labels.any():
        return 0.5
    precision, recall, thresholds = sklearn_metrics.precision_recall_curve(labels.ravel(), probabilities.ravel())
    best = int(np.argmax((precision * recall / np.maximum(precision + recall, 1e-9))[:-1]))
    below = thresholds[best - 1] if best else 0.0
    return float(below + thresholds[best]) / 2


def matthews_correlation(predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Returns Matthews' correlation coefficient (CoLA) and the accuracy."""
    return {
        "matthews_correlation": float(sklearn_metrics.matthews_corrcoef(labels, predictions)),
        "accuracy": float(np.mean(predictions == labels)),
    }


def pearson_and_spearman(predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Returns Pearson's and Spearman's correlation (STS-B); 0 if all predictions or all labels are equal."""
    if np.ptp(predictions) == 0 or np.ptp(labels) == 0:
        return {"pearson": 0.0, "spearman": 0.0}
    return {
        "pearson": float(stats.pearsonr(predictions, labels).statistic),
        "spearman": float(stats.spearmanr(predictions, labels).statistic),
    }


def errors(predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Returns the mean absolute error and the root of the mean squared error, in the units of the labels."""
    differences = predictions.astype(np.float64) - labels
    return {"mae": float(np.mean(np.abs(differences))), "rmse": float(np.sqrt(np.mean(differences**2)))}


def entity_scores(predictions: Sequence[Sequence[str]], labels: Sequence[Sequence[str]]) -> dict[str, float]:
    """Returns precision, recall and F1 of all entities and of each type, like the CoNLL evaluation.

    A predicted entity is correct if its first word, its last word and its type are correct.

    Args:
      predictions: the predicted tags of each sentence, in any IOB scheme.
      labels: the true tags.
    """
    if all(tag == "O" for sentence in (*labels, *predictions) for tag in sentence):
        return {"precision": 0.0, "recall": 0.0, "f1": 0.0}  # without entities, seqeval would print a warning
    report = classification_report(list(labels), list(predictions), output_dict=True, zero_division=0)
    names = (("precision", "precision"), ("recall", "recall"), ("f1", "f1-score"))
    scores = {name: float(report["micro avg"][key]) for name, key in names}
    for entity_type in sorted(report.keys() - {"micro avg", "macro avg", "weighted avg"}):
        scores |= {f"{name}_{entity_type}": float(report[entity_type][key]) for name, key in names}
    return scores
