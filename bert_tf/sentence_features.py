"""Sentences and sentence pairs to features: the release's run_classifier.py, and a form for whole data sets.

`InputExample`, `InputFeatures`, `PaddingInputExample` and `convert_single_example` keep the release's names and
arguments, so that code written for it ports by its imports.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from bert_tf import packing
from bert_tf.example_format import classification_features, serialize
from bert_tf.feature_sets import FeatureSet
from bert_tf.files import InputError
from bert_tf.tokenization import FullTokenizer


@dataclasses.dataclass(frozen=True)
class InputExample:
    """A row of a data set.

    Attributes:
      guid: unique id.
      text_a: the first, or only, text.
      text_b: the second text of a pair.
      label: None for test examples without one.
    """

    guid: str
    text_a: str
    text_b: str | None = None
    label: str | None = None


class PaddingInputExample:
    """Fills up a batch on TPU; becomes features of zeros with `is_real_example` False."""


@dataclasses.dataclass(frozen=True)
class InputFeatures:
    """An example as the model reads it, padded."""

    input_ids: list[int]
    input_mask: list[int]
    segment_ids: list[int]
    label_id: int
    is_real_example: bool = True


def convert_single_example(
    ex_index: int,
    example: InputExample | PaddingInputExample,
    label_list: Sequence[str],
    max_seq_length: int,
    tokenizer: FullTokenizer,
) -> InputFeatures:
    """One example's features, as the release makes them.

    Args:
      ex_index: the example's number, for messages.
      example: the row.
      label_list: the labels in the order of their ids.
      max_seq_length: length of the lists.
      tokenizer: of the model.

    Raises:
      InputError: if the label is not one of `label_list`.
    """
    if isinstance(example, PaddingInputExample):
        zeros = [0] * max_seq_length
        return InputFeatures(zeros, zeros, zeros, label_id=0, is_real_example=False)
    if example.label not in label_list:
        raise InputError(f"example {ex_index} ({example.guid}): {_unknown_label(example.label, label_list)}")
    ids, segment_ids = pack_example(example, max_seq_length, tokenizer)
    return InputFeatures(*packing.pad(ids, segment_ids, max_seq_length), label_id=label_list.index(example.label))


def serialize_features(features: InputFeatures) -> bytes:
    """The record that the release's `file_based_convert_examples_to_features` writes."""
    return serialize(
        classification_features(len(features.input_ids)),
        {
            "input_ids": features.input_ids,
            "input_mask": features.input_mask,
            "segment_ids": features.segment_ids,
            "label_ids": [features.label_id],
            "is_real_example": [int(features.is_real_example)],
        },
    )


def pack_example(example: InputExample, max_seq_length: int, tokenizer: FullTokenizer) -> tuple[list[int], list[int]]:
    """[CLS] A [SEP] B [SEP] and its segment ids, cut to `max_seq_length` but not padded."""
    segment_b = None if example.text_b is None else tokenizer.encode(example.text_b)
    a, b = packing.fit_segments(tokenizer.encode(example.text_a), segment_b, max_seq_length)
    return packing.join_segments(a, b, cls=tokenizer.vocab["[CLS]"], sep=tokenizer.vocab["[SEP]"])


def featurize(
    examples: Sequence[InputExample],
    labels: Sequence[str] | None,
    max_seq_length: int,
    tokenizer: FullTokenizer,
) -> FeatureSet:
    """A whole data set's features.

    Args:
      examples: the rows; those without a label get label 0.
      labels: the classes in the order of their ids; None for regression, where labels are numbers.
      max_seq_length: longer sequences are cut.
      tokenizer: of the model.
    """
    packed = [pack_example(example, max_seq_length, tokenizer) for example in examples]
    if labels is None:
        label_ids = np.array([float(example.label or 0) for example in examples], np.float32)
    else:
        numbers = {label: i for i, label in enumerate(labels)} | {None: 0}
        label_ids = np.array([numbers[example.label] for example in examples], np.int32)
    return FeatureSet.from_sequences(packed, {"label_ids": label_ids})


def _unknown_label(label: str | None, labels: Sequence[str]) -> str:
    return f"the label {label!r} is unknown; {', '.join(map(repr, labels))} are expected."


def check_label(example: InputExample, place: str, labels: Sequence[str] | None) -> None:
    """Checks an example's label against the classes, or that it is a number where there are none.

    Args:
      example: the row.
      place: file and line it came from.
      labels: the classes; None for regression.

    Raises:
      InputError: names the place.
    """
    if labels is not None and example.label not in labels:
        raise InputError(f"{place}: {_unknown_label(example.label, labels)}")
    if labels is None and not _is_number(example.label):
        raise InputError(f"{place}: the score {example.label!r} is not a number.")


def _is_number(text: str | None) -> bool:
    try:
        return np.isfinite(float(text or "none"))
    except ValueError:
        return False
