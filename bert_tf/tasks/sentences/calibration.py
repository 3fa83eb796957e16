"""Calibration of the probabilities of classes (Guo et al., 2017, "On Calibration of Modern Neural Networks").

Labels have the shape [N] for classes, and [N, C], 0 or 1, for several labels. Each of several labels is a decision.

Axis letters: N examples, C classes.
"""

import numpy as np
from scipy import optimize, special

# The number of bins of the calibration error, as in the paper.
BINS = 15
# The range of temperatures. Without wrong answers, the best temperature would be 0.
_LOWEST, _HIGHEST = 0.05, 20.0


def probabilities_of(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Returns the probabilities [N, C] for logits [N, C]. The shape of the labels selects the function."""
    return special.softmax(logits, axis=-1) if labels.ndim == 1 else special.expit(logits)


def losses(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Returns the cross entropy of each example, or the mean binary cross entropy of its labels [N]."""
    if labels.ndim == 1:
        return -np.take_along_axis(special.log_softmax(logits, axis=-1), labels[:, np.newaxis], axis=-1)[:, 0]
    return np.mean(np.logaddexp(0.0, logits) - labels * logits, axis=-1)


def best_temperature(logits: np.ndarray, labels: np.ndarray) -> float:
    """Returns the temperature from 0.05 to 20 with the smallest mean loss of logits [N, C] divided by it (section 4.2).

    The temperature does not change the order of the classes.
    """
    logits = logits.astype(np.float64)

    def loss(logarithm: float) -> float:
        return float(np.mean(losses(logits / np.exp(logarithm), labels)))

    return float(np.exp(optimize.minimize_scalar(loss, bounds=np.log((_LOWEST, _HIGHEST)), method="bounded").x))


def expected_error(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Returns the expected calibration error (section 2, equation 3) with 15 bins of equal width.

    The error is the mean difference between confidence and accuracy in a bin, weighted by the number of decisions. For
    classes, the confidence is the highest probability. For several labels, it is the probability of each label, and the
    accuracy is the share of decisions in which the example has the label.
    """
    if labels.ndim == 1:
        confidence, is_right = probabilities.max(axis=-1), probabilities.argmax(axis=-1) == labels
    else:
        confidence, is_right = probabilities.ravel(), labels.ravel()
    bins = np.maximum(np.ceil(confidence * BINS).astype(int) - 1, 0)
    return float(np.abs(np.bincount(bins, is_right - confidence.astype(np.float64))).sum() / len(confidence))
