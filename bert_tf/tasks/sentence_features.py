"""Sentences and sentence pairs to features: the release's run_classifier.py, and a form for whole data sets.

`InputExample`, `InputFeatures`, `PaddingInputExample` and `convert_single_example` keep the release's names and
arguments, so that code written for it ports by its imports.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bert_tf.finetuning.feature_sets import FeatureSet
from bert_tf.runtime import parallel
from bert_tf.runtime.files import InputError
from bert_tf.sequences import packing
from bert_tf.sequences.example_format import classification_features, serialize
from bert_tf.tokenization import FullTokenizer


@dataclasses.dataclass(frozen=True)
class InputExample:
    """A row of a data set.

    Attributes:
      guid: unique id.
      text_a: the first, or only, text.
      text_b: the second text of a pair.
      label: None for test examples without one; several in multi-label tasks.
    """

    guid: str
    text_a: str
    text_b: str | None = None
    label: str | tuple[str, ...] | None = None


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
    num_workers: int = 1,
    multi_label: bool = False,
) -> FeatureSet:
    """A whole data set's features.

    Args:
      examples: the rows; those without a label get label 0, or no label if there may be several.
      labels: the classes in the order of their ids; None for regression, where labels are numbers.
      max_seq_length: longer sequences are cut.
      tokenizer: of the model.
      num_workers: see `parallel.map_chunks`.
      multi_label: an example may have any number of labels; label_ids are [N, C], 1.0 for each that it has.
    """
    if labels is None:
        label_ids = np.array([float(example.label or 0) for example in examples], np.float32)
    elif multi_label:
        given = [set(example.label or ()) for example in examples]
        label_ids = np.array([[label in own for label in labels] for own in given], np.float32)
    else:
        numbers = {label: i for i, label in enumerate(labels)} | {None: 0}
        label_ids = np.array([numbers[example.label] for example in examples], np.int32)
    return pack_data_set(
        examples, lambda example: [pack_example(example, max_seq_length, tokenizer)], label_ids, num_workers
    )


def pack_data_set(
    examples: Sequence[Any],
    pack: Callable[[Any], Sequence[tuple[Sequence[int], Sequence[int]]]],
    label_ids: np.ndarray,
    num_workers: int,
    choices: int = 1,
) -> FeatureSet:
    """Packs every example, in several processes.

    Args:
      examples: of any kind.
      pack: an example's sequences, as many as there are choices.
      label_ids: a row for each example.
      num_workers: see `parallel.map_chunks`.
      choices: sequences of one example.
    """

    def pack_chunk(chunk: Sequence[Any]) -> FeatureSet:
        return FeatureSet.from_sequences([sequence for example in chunk for sequence in pack(example)])

    parts = parallel.map_chunks(pack_chunk, examples, num_workers, "tokenize")
    return FeatureSet.joined(parts, {"label_ids": label_ids}, choices)


def _unknown_label(label: str | None, labels: Sequence[str]) -> str:
    return f"the label {label!r} is unknown; {', '.join(map(repr, labels))} are expected."


def check_texts(example: InputExample, place: str) -> None:
    """Checks that no text of an example is empty or white space.

    Raises:
      InputError: names the place.
    """
    if not example.text_a.strip():
        raise InputError(f"{place}: the text is empty.")
    if example.text_b is not None and not example.text_b.strip():
        raise InputError(f"{place}: the second text is empty.")


def check_label(example: InputExample, place: str, labels: Sequence[str] | None) -> None:
    """Checks an example's label, or labels, against the classes; or that it is a number where there are none.

    Args:
      example: the row.
      place: file and line it came from.
      labels: the classes; None for regression.

    Raises:
      InputError: names the place.
    """
    for label in example.label if isinstance(example.label, tuple) else [example.label]:
        if labels is not None and label not in labels:
            raise InputError(f"{place}: {_unknown_label(label, labels)}")
    if labels is None and not is_number(example.label):
        raise InputError(f"{place}: the score {example.label!r} is not a number.")


def is_number(text: str | None) -> bool:
    """Whether a text stands for a finite number."""
    try:
        return np.isfinite(float(text or "none"))
    except ValueError:
        return False
