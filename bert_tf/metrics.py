"""The scores that tasks are judged by, from scikit-learn and SciPy.

Each function takes the model's outputs and the labels and gives named scores between -1 and 1.
"""

import numpy as np
from scipy import stats
from sklearn import metrics as sklearn_metrics


def accuracy(predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Share of right predictions."""
    return {"accuracy": float(np.mean(predictions == labels))}


def accuracy_and_f1(predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Accuracy, and F1 of class 1 (MRPC, QQP)."""
    f1 = sklearn_metrics.f1_score(labels, predictions, zero_division=0.0)
    return {"accuracy": float(np.mean(predictions == labels)), "f1": float(f1)}


def matthews_correlation(predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Matthews correlation coefficient (CoLA), and accuracy."""
    return {
        "matthews_correlation": float(sklearn_metrics.matthews_corrcoef(labels, predictions)),
        "accuracy": float(np.mean(predictions == labels)),
    }


def pearson_and_spearman(predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Both correlations (STS-B); 0 where the predictions, or the labels, are all the same."""
    if np.ptp(predictions) == 0 or np.ptp(labels) == 0:
        return {"pearson": 0.0, "spearman": 0.0}
    return {
        "pearson": float(stats.pearsonr(predictions, labels).statistic),
        "spearman": float(stats.spearmanr(predictions, labels).statistic),
    }
