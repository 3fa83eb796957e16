"""Measures the sequences per second of fine-tuning on sequences of realistic lengths.

    taskset -c 0,1 python -m benchmarks.finetune [--dtypes=float32,bfloat16] [--rounds=3] [--compare_python=PATH]

A model of the size of the 6-layer checkpoint (hidden size 384) is trained on QNLI. It is randomly initialised, because
speed does not depend on the weights. Padding is dynamic. The time of a step includes the preparation of its batch, but
not the tracing of a graph for each length, which takes seconds in the first steps. If --compare_python is the
interpreter of an environment with torch and transformers, transformers trains the same model on the same sequences in a
separate process. The contenders alternate, so that other load on the machine affects all of them equally. The table
shows the median of each. If the processor has no instructions for bfloat16 (AVX512-BF16 or AMX), the last line says so.
On two cores each contender takes about two minutes.
"""

import contextlib
import functools
import statistics
import tempfile
import time

from absl import app, flags

from benchmarks import transformers_peer
from benchmarks.shared_data import QNLI_FOLDER, VOCAB_FILE
from bert_tf.config import BertConfig
from bert_tf.distribution import strategies
from bert_tf.finetuning.finetuning_config import FinetuningConfig
from bert_tf.finetuning.run import FinetuningRun
from bert_tf.optimization import OptimizerConfig
from bert_tf.runtime import reporting
from bert_tf.tasks.glue import GlueTask
from bert_tf.tokenization import FullTokenizer
from bert_tf.training.loop import Trainer
from bert_tf.training.settings import TrainingConfig

WINDOW_STEPS = 16
WARM_UP_STEPS = 48  # enough for batches of all lengths; a graph is traced for each length

_DATA_DIR = flags.DEFINE_string("data_dir", QNLI_FOLDER, "Folder of QNLI.")
_VOCAB_FILE = flags.DEFINE_string("vocab_file", VOCAB_FILE, "Vocabulary of an uncased model.")
_CONFIG_FILE = flags.DEFINE_string("bert_config_file", "", "Config of a model of another size.")
_LENGTH = flags.DEFINE_integer("max_seq_length", 128, "Longer sequences are truncated.")
_BATCH_SIZE = flags.DEFINE_integer("train_batch_size", 32, "Sequences per step.")
_DTYPES = flags.DEFINE_list("dtypes", ["float32", "bfloat16"], "Data types of our matrix multiplications.")
_ROUNDS = flags.DEFINE_integer("rounds", 3, f"Measurements of each contender, of {WINDOW_STEPS} steps each.")
_COMPARE_PYTHON = flags.DEFINE_string("compare_python", "", "Python interpreter with torch and transformers.")
_JIT = flags.DEFINE_bool("jit_compile", False, "Compile our step with XLA.")

MINILM = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}


def make_run(config, dtype):
    """Returns the run that run_classifier.py would make."""
    training = TrainingConfig(
        tempfile.gettempdir(),
        OptimizerConfig(5e-5, 10000, 100),
        _BATCH_SIZE.value,
        dtype=dtype,
        jit_compile=_JIT.value,
    )
    tokenizer = FullTokenizer(_VOCAB_FILE.value, do_lower_case=True)
    task = GlueTask("qnli", _DATA_DIR.value)
    settings = FinetuningConfig(max_seq_length=_LENGTH.value, training=training)
    return FinetuningRun(task, settings, (config, tokenizer))


def our_steps(run):
    """Returns a function that trains for a number of steps and returns the elapsed seconds."""
    with run.strategy.scope():
        trainer = Trainer(run.model, run.training_config, run.strategy)
    data = run.training_data(run.features("train"))
    batches = strategies.batches(run.strategy, functools.partial(data.from_step, 0))

    def train(steps):
        start = time.perf_counter()
        sum(trainer.steps(batches, steps, data.has_graph_per_shape))
        trainer.take_means()
        return time.perf_counter() - start

    return train


def examples_of(run):
    """Yields the training sequences in the format of transformers."""
    features, start = run.features("train"), 0
    for length, first, label in zip(
        features.lengths.tolist(),
        features.first_lengths.tolist(),
        features.per_example["label_ids"].tolist(),
        strict=True,
    ):
        ids = features.input_ids[start : start + length].tolist()
        start += length
        yield {"input_ids": ids, "token_type_ids": [0] * first + [1] * (length - first), "labels": label}


def measure(contenders):
    """Returns the median sequences per second of each contender. The contenders alternate."""
    rates = {name: [] for name in contenders}
    for train in contenders.values():
        train(WARM_UP_STEPS)
    for _ in range(_ROUNDS.value):
        for name, train in contenders.items():
            rates[name].append(WINDOW_STEPS * _BATCH_SIZE.value / train(WINDOW_STEPS))
    return {name: statistics.median(values) for name, values in rates.items()}


def main(_):
    vocab_size = len(FullTokenizer(_VOCAB_FILE.value, do_lower_case=True).vocab)
    config = BertConfig.from_json_file(_CONFIG_FILE.value) if _CONFIG_FILE.value else BertConfig(vocab_size, **MINILM)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as peers:
        contenders, runs = {}, {dtype: make_run(config, dtype) for dtype in _DTYPES.value}
        if _COMPARE_PYTHON.value:
            examples = examples_of(next(iter(runs.values())))
            transformers_peer.write(folder, config, "BertForSequenceClassification", examples)
        for dtype, run in runs.items():
            contenders[f"ours, {dtype}"] = our_steps(run)
            if _COMPARE_PYTHON.value:
                peer = transformers_peer.steps(_COMPARE_PYTHON.value, folder, dtype, _BATCH_SIZE.value)
                contenders[f"transformers, {dtype}"] = peers.enter_context(peer)
        rates = measure(contenders)
    rows = []
    for name, rate in rates.items():
        row = {"contender": name, "sequences per second": rate}
        if _COMPARE_PYTHON.value:
            row["times transformers"] = rate / rates[f"transformers, {name.split(', ')[1]}"]
        rows.append(row)
    print(reporting.table(rows))
    if strategies.emulates_bfloat16():
        print("This processor has no instructions for bfloat16, so bfloat16 makes neither side faster.")


if __name__ == "__main__":
    app.run(main)
