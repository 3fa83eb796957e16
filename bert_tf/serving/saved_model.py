"""Writes this project's SavedModels, loads them and calls them with plain Python values."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  (the tokenizer's operations)
from google.protobuf.message import DecodeError

from bert_tf.runtime import files
from bert_tf.runtime.files import InputError
from bert_tf.serving.answering import AnsweringModel, Field
from bert_tf.serving.reader import ServedModel
from bert_tf.serving.settings import SERVING_DEFAULT

# Padded outputs, each with the output that says how many of a row's values are not padding.
_COUNTS = {
    "tokens": "num_tokens",
    "tags": "num_tokens",
    "token_starts": "num_tokens",
    "token_ends": "num_tokens",
    "input_ids": "num_tokens",
    "sequence_output": "num_tokens",
    "entities": "num_entities",
    "entity_types": "num_entities",
    "entity_starts": "num_entities",
    "entity_ends": "num_entities",
    **dict.fromkeys(
        ("answers", "answer_starts", "answer_ends", "answer_scores", "answer_probabilities"), "num_answers"
    ),
    "scores": "num_tokens",
    "entity_scores": "num_entities",
    "guesses": "num_masks",
    "probabilities": "num_masks",
    "all_encoder_layers": "num_tokens",
}
# The padded axis of a row, if it isn't the first.
_PADDED_AXES = {"all_encoder_layers": 1}
# Outputs, by name and rank, that have one value for each element of a row of this input.
_AS_LONG_AS = {
    ("sequence_output", 3): "input_ids",
    ("logits", 3): "input_ids",
    ("start_logits", 2): "input_ids",
    ("end_logits", 2): "input_ids",
    ("probabilities", 2): "endings",
    ("truncated", 2): "endings",
}
# What TensorFlow's loader raises for a damaged model; it has no error class of its own.
_LOAD_ERRORS = (
    tf.errors.OpError,
    OSError,
    ValueError,
    RuntimeError,
    LookupError,
    TypeError,
    AttributeError,
    DecodeError,
)


def write(model: ServedModel, folder: str, text: bool = True) -> list[str]:
    """Writes a SavedModel into a folder that doesn't exist yet.

    What `tf.saved_model.load` gives of it can be called like its first signature, with inputs in their order.

    Args:
      model: the served model.
      folder: the new folder.
      text: see `ExportConfig`.

    Returns:
      The names of its signatures.
    """
    signatures = {name: function for name, function in model.signatures().items() if text or name == "ids"}
    model.__call__ = next(iter(signatures.values()))
    tf.saved_model.save(model, folder, signatures=signatures)
    return list(signatures)


class ExportedModel(AnsweringModel):
    """A loaded SavedModel.

    Args:
      folder: the folder that contains saved_model.pb.
      signature: the name of the signature that is called.

    Attributes:
      inputs: the names of the signature's inputs, which are the fields of an example. Those of a classifier of your own
        data are the columns that it was trained on; `text_a` and `text_b` are understood in their place.
      signatures: the names of all signatures.
    """

    def __init__(self, folder: str, signature: str = SERVING_DEFAULT) -> None:
        if not files.exists(f"{folder}/saved_model.pb"):
            raise InputError(
                f"{folder} is not an exported model: it has no saved_model.pb. A run or a pre-trained model is "
                f"exported by `python -m bert_tf.export --model_dir={folder} --export_dir=NEW_FOLDER`."
            )
        try:
            self._model = tf.saved_model.load(files.plain_name(folder))
            self.signatures = sorted(self._model.signatures)
        except _LOAD_ERRORS as error:
            reason = str(error).partition("\n")[0]
            raise InputError(
                f"{folder} can't be loaded: it is damaged, incomplete, or not a model of this version "
                f"({type(error).__name__}: {reason}). Export the model again."
            ) from None
        if signature not in self.signatures:
            raise InputError(f"{folder} has no signature {signature!r}; it has {', '.join(self.signatures)}.")
        self._function = self._model.signatures[signature]
        specs: dict[str, tf.TensorSpec] = self._function.structured_input_signature[1]
        fields = {x: Field(str if spec.dtype == tf.string else int, spec.shape.rank != 1) for x, spec in specs.items()}
        super().__init__(fields, self._texts() if signature == SERVING_DEFAULT else ())

    def _texts(self) -> list[str]:
        """The names of a classifier's texts, in their order."""
        is_classifier = {"logits", "score"} & self._function.structured_outputs.keys()
        if not is_classifier or not callable(self._model):  # models of other programs may not be
            return []
        functions = self._model.__call__.concrete_functions
        specs = functions[0].structured_input_signature[0]  # of a missing text_b, None
        return [spec.name for spec in specs if spec is not None]

    def __call__(self, **inputs: Any) -> dict[str, np.ndarray]:
        """Calls the signature itself, with arrays as inputs and outputs."""
        return {name: values.numpy() for name, values in self._function(**self._renamed(inputs)).items()}

    def _answer(self, examples: Sequence[Mapping[str, Any]], numbers: Sequence[int]) -> list[dict[str, Any]]:
        batch = [examples[number] for number in numbers]
        try:
            outputs = self(**{name: self._tensor(name, [fields[name] for fields in batch]) for name in self.inputs})
        except tf.errors.InvalidArgumentError as error:  # a failed check of the signature's inputs
            if len(numbers) == 1:
                raise InputError(f"example {numbers[0]}: {_assertion(error)}") from None
            return [row for number in numbers for row in self._answer(examples, [number])]
        return [
            {name: _to_python(name, outputs[name][row], _count(name, outputs, row, fields)) for name in sorted(outputs)}
            for row, fields in enumerate(batch)
        ]

    def _tensor(self, name: str, column: list) -> tf.Tensor:
        kind, is_list = self._fields[name]
        if kind is int:
            return tf.ragged.constant(column, tf.int32).to_tensor()
        if not is_list:
            return tf.constant([_encode(text) for text in column])
        return tf.ragged.constant([[_encode(text) for text in texts] for texts in column]).to_tensor("")


def _encode(text: str) -> bytes:
    """Encodes in UTF-8; lone surrogates, which JSON may contain, become invalid bytes, which the model drops."""
    return text.encode("utf-8", "surrogatepass")


def _assertion(error: tf.errors.InvalidArgumentError) -> str:
    """Returns the message of a failed assertion in the graph, without TensorFlow's additions."""
    match = re.search(r"assertion failed: \[(.*?)\]", error.message)
    return match.group(1) if match else error.message


def _count(name: str, outputs: Mapping[str, np.ndarray], row: int, fields: Mapping[str, Any]) -> int | None:
    """Returns how many of a row's values are not padding; None for all."""
    counts = outputs.get(_COUNTS.get(name, ""))
    if counts is not None:
        return int(counts[row])
    source = fields.get(_AS_LONG_AS.get((name, outputs[name].ndim), ""))
    return None if source is None else len(source)


def _to_python(name: str, value: np.ndarray | np.generic, count: int | None) -> Any:
    """Converts an output to Python values, as in JSON."""
    kept = value if count is None else value[(slice(None),) * _PADDED_AXES.get(name, 0) + (slice(count),)]
    return _decoded(kept.tolist() if isinstance(kept, np.ndarray | np.generic) else kept)


def _decoded(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    return [_decoded(part) for part in value] if isinstance(value, list) else value
