"""The micro-batches of a replica, and sums over them.

A replica batch is one replica's part of a batch. It consists of micro-batches of one shape, which are concatenated.
With packed rows of a fixed shape, it also has spill micro-batches for the examples that do not fit (see
`sequences.placement`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.sequences.packed_rows import Layout
from bert_tf.training.interface import Batch, TrainableModel

# Keys of a replica batch: the spill micro-batches (a separate batch), and a mask of the used spill micro-batches.
_SPILL, _IS_USED = "spill", "spill_is_used"


def join(placed: Sequence[tuple[Layout, Mapping[str, np.ndarray]]]) -> dict[str, Any]:
    """Returns a replica batch for the layout and arrays of its micro-batches, then of its spill micro-batches."""
    arrays = dict(placed[0][1])
    for layout, values in placed[1:]:
        is_used = np.arange(len(layout.examples)) < layout.used
        arrays |= {_SPILL: values, _IS_USED: is_used.astype(np.float32)}
    return arrays


def _groups(batch: Batch) -> list[Batch]:
    """Returns the micro-batches of a replica batch, and its spill micro-batches if there are any."""
    main = {name: x for name, x in batch.items() if name not in (_SPILL, _IS_USED)}
    return [main, batch[_SPILL]] if _SPILL in batch else [main]


def totals(model: TrainableModel, batch: Batch) -> dict[str, tf.Tensor]:
    """Returns `TrainableModel.totals` of a replica's part of the batch, summed over the micro-batches."""
    return tf.nest.map_structure(lambda *values: tf.add_n(values), *map(model.totals, _groups(batch)))


def tokens_and_flops(model: TrainableModel, batch: Batch) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the number of tokens of a replica, and the floating-point operations of its step, without padding."""
    groups = _groups(batch)
    masks = [group["sequence_lengths" if "sequence_lengths" in group else "input_mask"] for group in groups]
    tokens = tf.add_n([tf.reduce_sum(mask) for mask in masks])
    return tokens, tf.add_n([model.flops(group) for group in groups])


def rows_and_length(batch: Batch) -> tuple[float, int]:
    """Returns the number of computed rows, including used spill micro-batches, and the length of a row."""
    main, *spill = _groups(batch)
    rows, length = main["input_ids"].shape
    if spill:
        rows += float(spills(batch)["spills"]) * len(spill[0]["input_ids"]) / len(batch[_IS_USED])
    return rows, length


def spills(batch: Batch) -> dict[str, tf.Tensor]:
    """Returns the number of used spill micro-batches; empty if the replica batch can't have any."""
    return {"spills": tf.reduce_sum(batch[_IS_USED])} if _IS_USED in batch else {}


def sums(
    function: Callable[[Batch, int | tf.Tensor | None], Any], batch: Batch, count: int = 1, has_spills: bool = True
) -> Any:
    """Returns the sums of a function's results over all micro-batches of a replica, computed one after another.

    Args:
      function: takes a micro-batch and its number, which is None if there can be only one micro-batch. Returns tensors
        in any structure.
      batch: the replica batch.
      count: the number of micro-batches, without spill micro-batches.
      has_spills: if False, spill micro-batches are ignored.
    """
    main, *spill = _groups(batch)
    if count > 1:
        split = _split(main, count)
        first = function({name: x[0] for name, x in split.items()}, 0)
        total = _added(function, first, split, start=1, end=count)
    else:
        total = function(main, 0 if spill else None)
    if not spill or not has_spills:
        return total
    split = _split(spill[0], batch[_IS_USED].shape[0])
    return _added(function, total, split, start=0, end=tf.cast(spills(batch)["spills"], tf.int32), first_number=count)


def _split(batch: Batch, count: int) -> Batch:
    """Splits arrays [count * n, ...] into [count, n, ...]."""

    def split(x: tf.Tensor) -> tf.Tensor:
        sizes = tf.unstack(tf.shape(x))[1:]
        return tf.reshape(x, [count, -1, *(known or size for known, size in zip(x.shape[1:], sizes, strict=True))])

    return {name: split(x) for name, x in batch.items()}


def _added(
    function: Callable, total: Any, split: Batch, start: int, end: int | tf.Tensor, first_number: int = 0
) -> Any:
    """Returns a total plus the function's results for the micro-batches from `start` to `end`."""

    def add_next(i: tf.Tensor, total: Any) -> tuple[tf.Tensor, Any]:
        new = function({name: x[i] for name, x in split.items()}, i + first_number)
        return i + 1, tf.nest.map_structure(tf.add, total, new)

    return tf.while_loop(lambda i, _: i < end, add_next, (tf.constant(start), total))[1]
