"""Measures the time of a training step compared with the original graph and with transformers.

    python -m benchmarks.train_step [--sizes=base,small] [--dtypes=float32,bfloat16] [--rounds=5] [--without_products]
        [--compare_python=PATH]
    taskset -c 0,1 python -m benchmarks.train_step --task=qnli [--rounds=3] [--freeze_layers=-1,3]
        [--compare_python=PATH]

The task "pretraining" trains on random examples without padding, and measures single steps; on a GPU, groups of ten
steps. The task "qnli" fine-tunes on QNLI's sequence lengths, by default with the sizes of the 6-layer checkpoint.
Padding is dynamic. A step includes the preparation of the batch. It does not include the tracing of a graph for each
length, which takes seconds in the first steps. Models are randomly initialised, because speed does not depend on the
weights.

The contenders alternate, so that other load on the machine affects all of them equally. The table shows the median of
each contender. If --compare_python is the interpreter of an environment with torch and transformers, transformers
trains the same model on the same examples, in the same precisions. The last line reports if the processor has no
instructions for bfloat16 (AVX512-BF16 or AMX). On two cores, pre-training takes about ten minutes, and QNLI two minutes
for each contender.
"""

import contextlib
import functools
import itertools
import json
import os
import tempfile

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

from benchmarks import common
from benchmarks.pretraining_step import make_batch, our_step, steps_of, without_products
from benchmarks.released_graph import ReleasedGraph
from bert_tf.config import BertConfig
from bert_tf.distribution import hardware, strategies
from bert_tf.finetuning import training_batches
from bert_tf.finetuning.finetuning_config import FinetuningConfig
from bert_tf.finetuning.run import FinetuningRun
from bert_tf.optimization import OptimizerConfig, build_optimizer
from bert_tf.runtime import files, reporting
from bert_tf.tasks.sentences.glue import GlueTask
from bert_tf.text import Tokenizer
from bert_tf.training.settings import TrainingConfig
from bert_tf.training.step.trainer import Trainer

# Number of steps in a measurement, and number of measurements for warming up.
_STEPS = {"pretraining": 10 if tf.config.list_physical_devices("GPU") else 1, "qnli": 16}
_WARM_UPS = {"pretraining": 2, "qnli": 3}

_TASK = flags.DEFINE_enum("task", "pretraining", list(_STEPS), "Training task.")
_SIZES = flags.DEFINE_list("sizes", [], "Model sizes. Default: base and small; minilm for qnli.")
_DTYPES = flags.DEFINE_list("dtypes", ["float32", "bfloat16"], "Data types of our matrix multiplications.")
_ROUNDS = flags.DEFINE_integer("rounds", 7, "Measurements of each contender; for qnli, of 16 steps each.")
_LENGTH = flags.DEFINE_integer("max_seq_length", 128, "Length of the sequences; for qnli, of the longest.")
_WITHOUT_PRODUCTS = flags.DEFINE_bool(
    "without_products",
    False,
    "Replace the results of all matrix multiplications, ours and the original's, by one number.",
)
_COMPARE_PYTHON = flags.DEFINE_string("compare_python", "", "Python interpreter with torch and transformers.")
_BATCHES = flags.DEFINE_list("batches", [], "Batch sizes. Default: 8 and 32 for base, 32 for the others.")
_DATA_DIR = flags.DEFINE_string("data_dir", common.QNLI_DIRECTORY, "Directory of QNLI.")
_VOCAB_FILE = flags.DEFINE_string("vocab_file", common.VOCAB_FILE, "Vocabulary of an uncased model, for qnli.")
_FREEZE_LAYERS = flags.DEFINE_list("freeze_layers", ["-1"], "Numbers of frozen layers, for qnli; -1 for none.")
_JIT = flags.DEFINE_bool("jit_compile", False, "Compile our step with XLA.")


def released_steps(config, batch):
    """Returns a function that runs steps of the original graph."""
    graph = ReleasedGraph(config)
    return lambda count: [graph.step(batch).numpy() for _ in range(count)]


def pretraining_examples(batch):
    """Yields the examples of a batch in the format of transformers, which predicts tokens whose label is not -100."""
    batch = {name: values.numpy() for name, values in batch.items()}
    labels = np.full(batch["input_ids"].shape, -100)
    np.put_along_axis(labels, batch["masked_lm_positions"], batch["masked_lm_ids"], axis=1)
    columns = (batch["input_ids"], batch["segment_ids"], labels, batch["next_sentence_labels"])
    for values in zip(*(column.tolist() for column in columns), strict=True):
        yield dict(zip(("input_ids", "token_type_ids", "labels", "next_sentence_label"), values, strict=True))


def finetuning_run(config, batch_size, dtype, freeze_layers):
    """Returns the fine-tuning run that run_classifier.py would start."""
    training = TrainingConfig(
        tempfile.gettempdir(),
        OptimizerConfig(5e-5, 10000, 100),
        batch_size,
        dtype=dtype,
        jit_compile="yes" if _JIT.value else "no",
        freeze_layers=freeze_layers,
    )
    settings = FinetuningConfig(max_seq_length=_LENGTH.value, training=training)
    return FinetuningRun(GlueTask("qnli", _DATA_DIR.value), settings, (config, Tokenizer(_VOCAB_FILE.value)))


def finetuning_steps(run):
    """Returns a function that runs fine-tuning steps."""
    with run.strategy.scope():
        optimizer = build_optimizer(run.training_config.optimizer, run.model.trained_variables)
        trainer = Trainer(run.model, optimizer, run.training_config, run.strategy, run.compilation)
    data = training_batches.training_data(run)
    batches = strategies.batches(run.strategy, functools.partial(data.from_step, 0))
    return steps_of(trainer, batches, data.shapes)


def finetuning_examples(run):
    """Yields the training sequences in the format of transformers."""
    features, start = run.data.features("train"), 0
    columns = features.lengths, features.first_lengths, features.per_example["label_ids"]
    for length, first, label in zip(*(column.tolist() for column in columns), strict=True):
        ids = features.input_ids[start : start + length].tolist()
        start += length
        yield {"input_ids": ids, "token_type_ids": [0] * first + [1] * (length - first), "labels": label}


def start_peer(directory, config, architecture, batch_size, dtype):
    """Starts transformers in another process, with the model and the examples in a directory."""
    files.write_json(os.path.join(directory, "config.json"), {**config.to_hf_dict(architecture), "num_labels": 2})
    threads = len(os.sched_getaffinity(0))
    script = os.path.join(common.PEERS, "transformers_training.py")
    peer = common.Peer([_COMPARE_PYTHON.value, script, directory, dtype, str(batch_size), str(threads)])
    peer.read()
    return peer


def compare(size, batch_size):
    """Returns the table rows for a model and a batch size."""
    keras.utils.set_random_seed(1)
    if _TASK.value == "pretraining":
        config, architecture = config_of(size, 30522), "BertForPreTraining"
        batch = make_batch(config, batch_size, _LENGTH.value)
        steps = {"released graph, float32": released_steps(config, batch)}
        steps |= {f"ours, {x}": our_step(config, batch, x, jit_compile=_JIT.value) for x in _DTYPES.value}
        examples = pretraining_examples(batch)
    else:
        config = config_of(size, len(Tokenizer(_VOCAB_FILE.value).vocab))
        architecture = "BertForSequenceClassification"
        runs = {}
        for dtype, layers in itertools.product(_DTYPES.value, _FREEZE_LAYERS.value):
            name = f"ours, {dtype}" + ("" if layers == "-1" else f", freeze_layers={layers}")
            runs[name] = finetuning_run(config, batch_size, dtype, int(layers))
        steps = {name: finetuning_steps(run) for name, run in runs.items()}
        examples = finetuning_examples(next(iter(runs.values())))
    count = _STEPS[_TASK.value]
    contenders = {name: functools.partial(common.seconds, function, count) for name, function in steps.items()}
    with contextlib.ExitStack() as context:
        if _COMPARE_PYTHON.value:
            directory = context.enter_context(tempfile.TemporaryDirectory())
            with open(os.path.join(directory, "examples.jsonl"), "w", encoding="utf-8") as writer:
                writer.writelines(json.dumps(example) + "\n" for example in examples)
            for dtype in _DTYPES.value:
                peer = context.enter_context(start_peer(directory, config, architecture, batch_size, dtype))
                contenders[f"transformers, {dtype}"] = functools.partial(peer.ask, count)
        if _WITHOUT_PRODUCTS.value:
            context.enter_context(without_products())
        common.medians(contenders, _WARM_UPS[_TASK.value])
        seconds = {name: s / count for name, s in common.medians(contenders, _ROUNDS.value).items()}
    rows = []
    for name, s in seconds.items():
        others = {"original": "released graph, float32", "transformers": f"transformers, {name.split(', ')[1]}"}
        row = {"model": size, "batch": batch_size, "contender": name, "seconds": s, "sequences/s": batch_size / s}
        rows.append(row | {f"times {other}": seconds[x] / s for other, x in others.items() if x in seconds})
    return rows


def config_of(size, vocab_size):
    """Returns the config for a size."""
    return BertConfig(vocab_size, **common.MINILM) if size == "minilm" else BertConfig.named(size, vocab_size)


def main(_):
    rows = []
    for size in _SIZES.value or (["base", "small"] if _TASK.value == "pretraining" else ["minilm"]):
        for batch_size in map(int, _BATCHES.value or (["8", "32"] if size == "base" else ["32"])):
            rows += compare(size, batch_size)
            print(reporting.table(rows), flush=True)
    if hardware.emulates_bfloat16():
        print("This processor has no instructions for bfloat16, so bfloat16 makes neither side faster.")


if __name__ == "__main__":
    app.run(main)
