"""Packs the examples of a step into rows. See `sequences.packed_rows`.

Axis letters: E examples of an input pipeline.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.sequences import packed_rows
from bert_tf.sequences.packed_rows import Layout, Tokens
from bert_tf.sequences.placement import Packer, Sizes
from bert_tf.training.errors import DataError
from bert_tf.training.step import micro_batches

# Arrays whose length depends on the number of rows or predictions.
_VARYING = {
    *("input_ids", "segment_ids", "sequence_ids", "position_ids"),
    *("masked_lm_positions", "masked_lm_ids", "masked_lm_weights"),
}


def packed(batch: Mapping[str, tf.Tensor], packer: Packer) -> dict[str, Any]:
    """Packs features [E, ...], and returns the batches of the pipeline's replicas, stacked."""
    dummy = {name: np.ones(x.shape, x.dtype.as_numpy_dtype) for name, x in batch.items()}
    # The shapes for sequences of one token. Without a fixed shape, the numbers of rows and predictions vary.
    template = _pack(dummy, packer)
    names = list(batch)

    def pack(*arrays: np.ndarray) -> list[np.ndarray]:
        return tf.nest.flatten(_pack(dict(zip(names, arrays, strict=True)), packer))

    arrays = tf.nest.flatten(template)
    packed_arrays = tf.numpy_function(pack, list(batch.values()), [array.dtype for array in arrays], stateful=False)
    packed_arrays = tf.nest.pack_sequence_as(template, packed_arrays)

    def with_shape(name: str, x: Any, array: Any) -> Any:
        if isinstance(array, dict):
            return {key: with_shape(key, x[key], values) for key, values in array.items()}
        varies = packer.shape is None and name in _VARYING
        return tf.ensure_shape(x, [len(array), None if varies else array.shape[1], *array.shape[2:]])

    return with_shape("", packed_arrays, template)


def _pack(batch: Mapping[str, np.ndarray], packer: Packer) -> dict[str, Any]:
    """See `packed`; takes and returns NumPy arrays."""
    count, length = batch["input_ids"].shape
    example_sizes = sizes(batch)
    if (example_sizes.lengths[:, 0] != (batch["input_mask"] > 0).sum(axis=1)).any():
        raise DataError("has an input_mask with a 0 before the last 1. Pass --pad_to_max_seq_length.")
    if "masked_lm_weights" in batch and not batch["masked_lm_weights"].any():
        raise DataError("has a batch whose masked_lm_weights are all 0, so nothing is predicted. Regenerate the file.")
    stored = {name: (batch[name].reshape(-1), 0) for name in ("input_ids", "segment_ids")}
    tokens = Tokens(stored, np.arange(count) * length, example_sizes.lengths[:, 0])
    per_example = {name: batch[name] for name in ("next_sentence_labels",) if name in batch}

    def arrays(placed: Layout) -> dict[str, np.ndarray]:
        packed = packed_rows.pack(placed, tokens, per_example)
        if "masked_lm_ids" not in batch:
            return packed
        predictions = (batch["masked_lm_positions"], batch["masked_lm_weights"])
        return packed | packed_rows.pack_predictions(placed, *predictions, {"masked_lm_ids": batch["masked_lm_ids"]})

    placed = packer.place(example_sizes, length)
    replica_batches = [micro_batches.join([(layout, arrays(layout)) for layout in layouts]) for layouts in placed]
    return tf.nest.map_structure(lambda *replicas: np.stack(replicas), *replica_batches)


def sizes(batch: Mapping[str, np.ndarray]) -> Sizes:
    """Returns the sizes of padded examples."""
    positions = np.arange(1, batch["input_mask"].shape[1] + 1)
    lengths = ((batch["input_mask"] > 0) * positions).max(axis=1, keepdims=True)
    if "masked_lm_weights" not in batch:
        return Sizes.of(lengths)
    return Sizes(lengths, (batch["masked_lm_weights"] > 0).sum(axis=1))
