"""Examples that are sentences or pairs: features, and checks of texts and labels."""

import dataclasses
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bert_tf.finetuning.feature_sets import FeatureSet
from bert_tf.runtime import parallel
from bert_tf.runtime.files import InputError
from bert_tf.runtime.program import say
from bert_tf.tasks import tables


@dataclasses.dataclass(frozen=True)
class InputExample:
    """A row of a data set.

    Attributes:
      guid: a unique id.
      text_a: the first or only text.
      text_b: the second text of a pair.
      label: the label; a tuple of labels in multi-label tasks; None for test examples without one.
    """

    guid: str
    text_a: str
    text_b: str | None = None
    label: str | tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class WeightedExample(InputExample):
    """A training row with a weight.

    Attributes:
      weight: the factor of its loss, >= 0.
    """

    weight: float = 1.0


def pack_data_set(
    examples: Sequence[Any],
    pack: Callable[[Any], Sequence[tuple[list[int], list[int], bool]]],
    label_ids: np.ndarray,
    num_workers: int,
    choices: int = 1,
    has_windows: bool = False,
) -> FeatureSet:
    """Tokenizes and packs all examples in several processes.

    Args:
      examples: examples of any type.
      pack: returns an example's sequences, one for each choice or window; see `Tokenizer.pack`.
      label_ids: one row per example.
      num_workers: see `parallel.map_chunks`.
      choices: the number of sequences in one example.
      has_windows: whether the sequences of an example are windows.
    """

    def pack_chunk(chunk: Sequence[Any]) -> tuple[FeatureSet, np.ndarray]:
        packed = [pack(example) for example in chunk]
        return FeatureSet.from_sequences(list(itertools.chain.from_iterable(packed))), np.array(
            list(map(len, packed)), np.int64
        )

    parts, counts = zip(*parallel.map_chunks(pack_chunk, examples, num_workers, "tokenize"), strict=True)
    features = FeatureSet.joined(parts, choices)
    if has_windows:
        features = dataclasses.replace(features, windows=np.concatenate(counts))
    return features.with_values(label_ids=label_ids)


def check_texts(example: InputExample, where: str) -> None:
    """Checks that no text of an example is empty or white space.

    Args:
      example: the row.
      where: its file and line, for the message.

    Raises:
      InputError: if a text is empty.
    """
    if not example.text_a.strip():
        raise InputError(f"{where}: the text is empty. Add it, or remove the row.")
    if example.text_b is not None and not example.text_b.strip():
        raise InputError(f"{where}: the second text is empty. Add it, or remove the row.")


def check_label(example: InputExample, where: str, labels: Sequence[str] | None) -> None:
    """Checks that an example's labels are known classes or, for regression, that its label is a number.

    Args:
      example: the row.
      where: its file and line, for the message.
      labels: the classes; None for regression.

    Raises:
      InputError: if a label is unknown or not a number.
    """
    for label in example.label if isinstance(example.label, tuple) else [example.label]:
        if labels is not None and label not in labels:
            raise InputError(f"{where}: the label {label!r} is unknown. Use one of {', '.join(map(repr, labels))}.")
    if labels is None and not is_number(example.label):
        raise InputError(f"{where}: the score {example.label!r} is not a number. Correct it.")


def all_labels_or_none(examples: list[Any], source: tables.Source) -> list[Any]:
    """Returns the rows of a test set. If the labels can't be used to score predictions, they are removed.

    Args:
      examples: the rows. `label` is None if it is missing or unknown to the model.
      source: the source of the rows, for the message.
    """
    labels = {example.label for example in examples}
    if labels == {None} or (None not in labels and len(labels) > 1):
        return examples
    missing = sum(example.label is None for example in examples)
    reason = f"{missing} rows have no known label" if missing else "all rows have the same label"
    say(f"{tables.name_of(source)}: predictions are not scored, because {reason}.")
    return [dataclasses.replace(example, label=None) for example in examples]


def whole_number(label: str) -> str:
    """Returns a whole number without its fraction ("1" for "1.0"); other labels are unchanged.

    Programs write a column of integers with a missing value as 1.0.
    """
    return label.partition(".")[0] if re.fullmatch(r"[+-]?\d+\.0*", label) else label


def by_value(label: str) -> tuple[bool, float, str]:
    """Returns the sort key of a class. Numbers are ordered by value, before other classes."""
    return not is_number(label), float(label) if is_number(label) else 0.0, label


def is_number(text: str | None) -> bool:
    """Returns whether a text is a number in the range of float32."""
    try:
        return abs(float(text or "none")) <= float(np.finfo(np.float32).max)
    except ValueError:
        return False
