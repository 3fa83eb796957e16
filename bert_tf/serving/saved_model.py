"""Loads SavedModels that this project has exported, and calls them with Python values."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  (the tokenizer's operations)

from bert_tf.runtime import files
from bert_tf.runtime.files import InputError
from bert_tf.serving.answering import Input, Predictor
from bert_tf.serving.export_config import SERVING_DEFAULT

# The output with the hidden states of all layers. In other outputs, the padded axis is the first axis of a row.
_LAYERS = "all_encoder_layers"
# Maps an output with the number of values in each row to the outputs that are padded after this number of values.
_PADDED = {
    "num_tokens": ("tokens", "tags", "scores", "token_starts", "token_ends", "input_ids", "sequence_output", _LAYERS),
    "num_entities": ("entities", "entity_types", "entity_scores", "entity_starts", "entity_ends"),
    "num_answers": ("answers", "answer_starts", "answer_ends", "answer_scores", "answer_probabilities"),
    "num_masks": ("guesses", "probabilities"),
}
_COUNTS = {name: count for count, names in _PADDED.items() for name in names}
# Maps the name and rank of an output to the input with the same number of values in each row.
_AS_LONG_AS = {
    ("sequence_output", 3): "input_ids",
    ("logits", 3): "input_ids",
    ("start_logits", 2): "input_ids",
    ("end_logits", 2): "input_ids",
    ("probabilities", 2): "endings",
    ("truncated", 2): "endings",
}


class ExportedModel(Predictor):
    """A loaded SavedModel.

    Args:
      directory: the directory that contains saved_model.pb.
      signature: the name of the signature to call.

    Attributes:
      inputs: the names of the inputs of the signature, which are the fields of an example. For a classifier trained on
        your own data, the inputs have the names of the training columns. `text_a` and `text_b` are accepted as aliases.
      signatures: the names of all signatures.

    Raises:
      InputError: if the directory is not an exported model, is damaged, or has no such signature.
    """

    def __init__(self, directory: str, signature: str = SERVING_DEFAULT) -> None:
        if not files.exists(f"{directory}/saved_model.pb"):
            raise InputError(
                f"{directory} is not an exported model: it has no saved_model.pb. Export a run or a pre-trained model "
                f"with `python -m bert_tf.export --model_dir={directory} --export_dir=NEW_DIRECTORY`."
            )
        try:
            self._model = files.load_by_plain_name(tf.saved_model.load, directory)
            self.signatures: list[str] = sorted(self._model.signatures)
        except Exception as error:  # TensorFlow's loader raises many types of errors
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise InputError(f"{directory} can't be loaded ({reason}). Export the model again.") from None
        if signature not in self.signatures:
            raise InputError(f"{directory} has no signature {signature!r}; it has {', '.join(self.signatures)}.")
        self._function = self._model.signatures[signature]
        specs: dict[str, tf.TensorSpec] = self._function.structured_input_signature[1]
        fields = {x: Input(str if spec.dtype == tf.string else int, spec.shape.rank != 1) for x, spec in specs.items()}
        super().__init__(fields, self._texts() if signature == SERVING_DEFAULT else ())

    def _texts(self) -> list[str]:
        """Returns the names of the text inputs of a classifier, in order; empty for other models."""
        is_classifier = {"logits", "score"} & self._function.structured_outputs.keys()
        if not is_classifier or not callable(self._model):  # models of other programs may not be callable
            return []
        functions = self._model.__call__.concrete_functions
        specs = functions[0].structured_input_signature[0]  # None for a missing text_b
        return [spec.name for spec in specs if spec is not None]

    def __call__(self, **inputs: Any) -> dict[str, np.ndarray]:
        """Calls the signature with arrays or tensors, and returns arrays."""
        return {name: values.numpy() for name, values in self._function(**self._renamed(inputs)).items()}

    def _answer(self, examples: Sequence[Mapping[str, Any]]) -> list[dict[str, Any] | InputError]:
        try:
            outputs = self(**{name: self._tensor(name, [fields[name] for fields in examples]) for name in self.inputs})
        except tf.errors.InvalidArgumentError as error:  # a failed check of the signature's inputs
            if len(examples) == 1:
                return [InputError(_assertion(error))]
            return [answer for fields in examples for answer in self._answer([fields])]
        return [
            {name: _decoded(_unpadded(name, outputs, row, fields)) for name in sorted(outputs)}
            for row, fields in enumerate(examples)
        ]

    def _tensor(self, name: str, column: list) -> tf.Tensor:
        kind, is_list = self._fields[name]
        if kind is int:
            return tf.ragged.constant(column, tf.int32).to_tensor()
        if not is_list:
            return tf.constant([_encode(text) for text in column])
        return tf.ragged.constant([[_encode(text) for text in texts] for texts in column]).to_tensor("")


def _encode(text: str) -> bytes:
    """Encodes text as UTF-8. Lone surrogates (possible in JSON) become invalid bytes, which the model drops."""
    return text.encode("utf-8", "surrogatepass")


def _assertion(error: tf.errors.InvalidArgumentError) -> str:
    """Returns the message of a failed assertion in the graph, without TensorFlow's additions."""
    match = re.search(r"assertion failed: \[(.*?)\]", error.message)
    return match.group(1) if match else error.message


def _unpadded(name: str, outputs: Mapping[str, np.ndarray], row: int, fields: Mapping[str, Any]) -> Any:
    """Returns a row of an output without padding, as Python values."""
    values = outputs[name]
    counts, source = outputs.get(_COUNTS.get(name)), fields.get(_AS_LONG_AS.get((name, values.ndim)))
    count = None if counts is None else int(counts[row])
    if counts is None and source is not None:
        count = len(source)
    value = values[row : row + 1].tolist()[0]
    if count is None:
        return value
    return [layer[:count] for layer in value] if name == _LAYERS else value[:count]


def _decoded(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    return [_decoded(item) for item in value] if isinstance(value, list) else value
