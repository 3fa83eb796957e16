"""Traces the training step in the form that runs on a TPU or a GPU, without the device."""

import contextlib
import dataclasses
import functools
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute.one_device_strategy import OneDeviceExtended

import bert_tf
from bert_tf.config import DTYPES, BertConfig
from bert_tf.distribution import hardware
from bert_tf.finetuning.models import ClassifierModel, SpanModel
from bert_tf.optimization import OptimizerConfig, build_optimizer
from bert_tf.pretraining.model import PretrainingModel
from bert_tf.sequences import packed_rows
from bert_tf.sequences.packed_rows import Layout, Tokens
from bert_tf.sequences.placement import Packer, Sizes
from bert_tf.training.settings import TrainingConfig
from bert_tf.training.step import micro_batches
from bert_tf.training.step.trainer import Trainer

TASKS = ("pretraining", "classification", "squad")
_PACKAGE = os.path.dirname(os.path.abspath(bert_tf.__file__))


class OneCore(tf.distribute.TPUStrategy):
    """A strategy that imitates a TPU with one core. It runs on the first CPU device."""

    def __init__(self) -> None:
        tf.distribute.Strategy.__init__(self, OneDeviceExtended(self, "/cpu:0"))

    def run(self, fn: Callable, args: tuple = (), kwargs: Mapping[str, Any] | None = None, options: Any = None) -> Any:
        """Calls a function in the only replica."""
        return self.extended.call_for_each_replica(fn, args, kwargs or {})


def predictions_of(length: int) -> int:
    """Returns the largest number of predictions for the paper's lengths: 15% of 128 or 512 tokens."""
    return 20 if length <= 128 else 77


def make_packed_batch(task: str, batch_size: int, length: int, packer: Packer) -> dict[str, Any]:
    """Makes a packed batch for one device. Only the shapes matter, so the sequences have one token."""
    count = predictions_of(length)
    sizes, ones = Sizes.of(np.ones((batch_size, 1), int)), np.ones(batch_size, np.int32)
    tokens = Tokens(dict.fromkeys(("input_ids", "segment_ids"), (ones, 0)), np.arange(batch_size), ones)
    names = {"classification": ["label_ids"], "squad": ["start_positions", "end_positions"]}
    per_example = dict.fromkeys(names.get(task, ["next_sentence_labels"]), ones)
    positions = np.zeros((batch_size, count), np.int32)

    def arrays(placed: Layout) -> dict[str, np.ndarray]:
        packed = packed_rows.pack(placed, tokens, per_example)
        if task != "pretraining":
            return packed
        values = {"masked_lm_ids": positions}
        return packed | packed_rows.pack_predictions(placed, positions, positions.astype(np.float32), values)

    (layouts,) = dataclasses.replace(packer, replicas=1).place(sizes, length)
    part = micro_batches.join([(layout, arrays(layout)) for layout in layouts])
    return tf.nest.map_structure(tf.constant, part)


def make_batch(task: str, batch_size: int, length: int) -> dict[str, tf.Tensor]:
    """Makes a batch of zeros, because only the shapes matter."""

    def zeros(*shape: int) -> tf.Tensor:
        return tf.zeros([batch_size, *shape], tf.int32)

    batch = {name: zeros(length) for name in ("input_ids", "segment_ids")}
    batch["input_mask"] = tf.ones_like(batch["input_ids"])
    if task == "pretraining":
        predictions = predictions_of(length)
        batch |= {"masked_lm_positions": zeros(predictions), "masked_lm_ids": zeros(predictions)}
        batch |= {"masked_lm_weights": tf.ones([batch_size, predictions]), "next_sentence_labels": zeros()}
    elif task == "classification":
        batch |= {"label_ids": zeros(), "is_real_example": zeros()}
    else:
        batch |= {"start_positions": zeros(), "end_positions": zeros()}
    return batch


@dataclasses.dataclass(frozen=True)
class Step:
    """The programs of a training step in the form that runs on a device.

    A TPU runs `Trainer.replica_step` as one program. A GPU runs `Trainer.replica_gradients` and `Trainer.update`.

    Attributes:
      programs: the programs by name, as StableHLO portable artifacts.
      unused: bytes of variables on the device that a program does not use, by the name of the program.
      sources: for each operation, the two innermost source lines of `bert_tf` that created it, such as
        "model/base_layers.py:116 > model/cpu_kernels.py:86".
      flops: floating-point operations of the matrix multiplications of a step.
      parameters: the number of trained parameters.
    """

    programs: dict[str, bytes]
    unused: dict[str, int]
    sources: dict[str, str]
    flops: float
    parameters: int


@contextlib.contextmanager
def assumed(platform: str) -> Iterator[tf.distribute.Strategy]:
    """Context manager: code is traced for one core of a TPU or for a GPU. Returns the strategy."""
    if platform == "TPU":
        strategy = OneCore()
        with strategy.scope():
            yield strategy
    else:
        with mock.patch.object(hardware, "has_only_cpus", lambda: False):
            yield tf.distribute.get_strategy()


def trace_step(
    platform: str,
    task: str,
    config: BertConfig,
    batch_size: int,
    length: int,
    packer: Packer | None = None,
    **settings: Any,
) -> Step:
    """Traces a step for one core of a TPU or for a GPU.

    Args:
      platform: "TPU" or "GPU".
      task: one of `TASKS`.
      config: the model's config.
      batch_size: number of sequences per step.
      length: number of tokens per sequence.
      packer: the shape of packed rows; None for a padded batch.
      **settings: other fields of `TrainingConfig`.
    """
    training = TrainingConfig(tempfile.gettempdir(), OptimizerConfig(1e-4, 1000000, 10000), batch_size, **settings)
    options = {
        "dtype": DTYPES[training.dtype],
        "use_one_hot_embeddings": platform == "TPU",
        "gradient_checkpointing": training.gradient_checkpointing,
    }
    with assumed(platform) as strategy:
        if task == "classification":
            model = ClassifierModel(config, 3, **options)
        else:
            model = (PretrainingModel if task == "pretraining" else SpanModel)(config, **options)
        optimizer = build_optimizer(training.optimizer, model.trained_variables)
        trainer = Trainer(model, optimizer, training, strategy)
        padded = make_batch(task, batch_size, length)
        batch = make_packed_batch(task, batch_size, length, packer) if packer else padded
        parts = training.gradient_accumulation_steps

        parameters = sum(int(np.prod(variable.shape)) for variable in model.trained_variables)
        compiled = functools.partial(tf.function, autograph=False, jit_compile=True)

        def replica_step(batch: Mapping[str, tf.Tensor]) -> None:
            strategy.run(trainer.replica_step, (batch, parts))

        if platform == "TPU":
            functions, unused = {"step": (compiled(replica_step), [batch])}, {}
        else:
            has_spills = bool(micro_batches.spills(batch))
            inputs = [batch, micro_batches.totals(model, batch), tf.zeros([2], tf.int32), parts, has_spills]
            gradients = compiled(trainer.replica_gradients)
            results = gradients.get_concrete_function(*inputs).structured_outputs
            results = tf.nest.map_structure(lambda result: tf.zeros(result.shape, result.dtype), results)
            functions = {"gradients": (gradients, inputs), "update": (compiled(trainer.update), results)}
            unused = {"gradients": 2 * 4 * parameters}  # the moments
        programs, sources = {}, {}
        for name, (function, inputs) in functions.items():
            programs[name] = function.experimental_get_compiler_ir(*inputs)(stage="stablehlo_serialized")
            sources |= _sources(function.get_concrete_function(*inputs).graph)
        return Step(programs, unused, sources, float(model.flops(padded)), parameters)


def _sources(graph: tf.Graph) -> dict[str, str]:
    sources = {}
    for operation in _operations(graph):
        frames = [frame for frame in operation.traceback or () if frame.filename.startswith(_PACKAGE)]
        lines = [f"{os.path.relpath(frame.filename, _PACKAGE)}:{frame.lineno}" for frame in frames[-2:]]
        sources.setdefault(operation.name, " > ".join(lines))
    return sources


def _operations(graph: tf.Graph) -> Iterator[tf.Operation]:
    """Yields the operations of a graph, and then of the functions that the graph calls."""
    functions = {}
    for operation in graph.get_operations():
        yield operation
        for name, attribute in operation.node_def.attr.items():
            if attribute.HasField("func"):
                functions[attribute.func.name] = name
    for function in functions:
        yield from _operations(graph._get_function(function).graph)
