"""Probabilities as labels of training examples, to distill a larger model (Hinton et al., 2015).

Axis letters: N examples, C classes.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from bert_tf.runtime.errors import InputError, first_of
from bert_tf.tasks.sentences.examples import InputExample, WeightedExample, class_of, is_number

# Prefix of the columns with the probabilities of classes, in prediction files and in training files.
PREFIX = "probability_"
# Largest difference of the sum of an example's probabilities from 1. Probabilities may be rounded.
_TOLERANCE = 0.02


@dataclasses.dataclass(frozen=True)
class SoftExample(WeightedExample):
    """A training row with probabilities predicted by another model, the teacher.

    Attributes:
      label: the most probable class; in multi-label tasks the classes with a probability of at least 0.5.
      probabilities: the probability of each class.
    """

    probabilities: Mapping[str, float] = dataclasses.field(default_factory=dict)


def checked(example: InputExample, where: str, problem: str, classes: Sequence[str] | None) -> SoftExample:
    """Checks the probabilities of an example.

    Args:
      example: the example. The label is a mapping from classes or column names to probabilities.
      where: file and line, for messages.
      problem: "classification" or "multi_label".
      classes: the classes or column names; None if they are not known yet.

    Raises:
      InputError: if a class is unknown or missing, a probability is not in [0, 1], or, for classification, the sum is
        not 1.
    """
    expected = [str(name).removeprefix(PREFIX) for name in classes or example.label]
    values = {class_of(str(name).removeprefix(PREFIX), expected): value for name, value in example.label.items()}
    if other := sorted(values.keys() ^ set(expected)):
        fault, names = "unknown" if other[0] in values else "missing", first_of(PREFIX + name for name in expected)
        raise InputError(f"{where}: the column {PREFIX}{other[0]} is {fault}. Use the columns {names}.")
    for label, value in values.items():
        if not is_number(value) or not 0 <= float(value) <= 1:
            raise InputError(f"{where}: {PREFIX}{label} is {value!r}. Use a number from 0 to 1.")
    probabilities = {label: float(value) for label, value in values.items()}
    label = max(probabilities, key=probabilities.__getitem__)
    if problem == "multi_label":
        label = tuple(name for name, value in probabilities.items() if value >= 0.5)
    elif abs(sum(probabilities.values()) - 1) > _TOLERANCE:
        names = " + ".join(f"{PREFIX}{name}" for name in probabilities)
        raise InputError(f"{where}: {names} is {sum(probabilities.values()):g}. Use probabilities whose sum is 1.")
    return SoftExample(**vars(example) | {"label": label, "probabilities": probabilities})


def soft_labels(
    rows: Sequence[Mapping[str, float]], classes: Sequence[str], problem: str, temperature: float
) -> np.ndarray:
    """Returns the probabilities [N, C] that result if the logits of the teacher are divided by a temperature.

    In classification, the probabilities of an example sum to 1. In multi-label tasks, each class is a separate binary
    distribution.
    """
    values = np.array([[row[label] for label in classes] for row in rows])
    if problem == "multi_label":
        values = np.stack([values, 1 - values], axis=-1)
    # The division by the largest value avoids underflow.
    powers = (values / values.max(axis=-1, keepdims=True)) ** (1 / temperature)
    powers = (powers / powers.sum(axis=-1, keepdims=True)).astype(np.float32)
    return powers[..., 0] if problem == "multi_label" else powers
