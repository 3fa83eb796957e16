"""How many sequences a second fine-tuning trains on, with sequences of real lengths.

    taskset -c 0,1 python -m benchmarks.finetune [--dtypes=float32,bfloat16] [--rounds=3] [--compare_python=PATH]

A model of the size of the 6-layer checkpoint (hidden 384, initial weights: speed doesn't depend on them) learns QNLI;
padding is dynamic, and making the batches is part of the step. With --compare_python, the interpreter of an environment
with torch and transformers, these fine-tune the same model on the same sequences in processes of their own. The
contenders take turns, so that whatever else the machine does falls on all of them; the table gives each one's median.
Where a processor can't compute in bfloat16 (no AVX512-BF16 or AMX), a last line says so.
Takes about a minute for each contender on two cores.
"""

import json
import os
import statistics
import subprocess
import tempfile
import time

from absl import app, flags

from benchmarks.shared_data import QNLI_FOLDER, VOCAB_FILE
from bert_tf.config import BertConfig
from bert_tf.finetuning.run import FinetuningRun
from bert_tf.optimization import OptimizerConfig
from bert_tf.runtime import distribution, reporting
from bert_tf.runtime.distribution import DistributionConfig
from bert_tf.tasks.glue import GlueTask
from bert_tf.tokenization import FullTokenizer
from bert_tf.training.contract import TrainingConfig
from bert_tf.training.loop import Trainer

HERE = os.path.dirname(os.path.abspath(__file__))
WINDOW_STEPS = 16  # batches of all lengths come in so many steps

_DATA_DIR = flags.DEFINE_string("data_dir", QNLI_FOLDER, "QNLI's folder.")
_VOCAB_FILE = flags.DEFINE_string("vocab_file", VOCAB_FILE, "Of an uncased model.")
_CONFIG_FILE = flags.DEFINE_string("bert_config_file", "", "Another model's size.")
_LENGTH = flags.DEFINE_integer("max_seq_length", 128, "Longer sequences are cut.")
_BATCH_SIZE = flags.DEFINE_integer("train_batch_size", 32, "Sequences in a step.")
_DTYPES = flags.DEFINE_list("dtypes", ["float32", "bfloat16"], "What products are computed in.")
_ROUNDS = flags.DEFINE_integer("rounds", 3, f"Turns of each contender, of {WINDOW_STEPS} steps each.")
_COMPARE_PYTHON = flags.DEFINE_string("compare_python", "", "An interpreter with torch and transformers.")
_JIT = flags.DEFINE_bool("jit_compile", False, "Compile our step with XLA.")

MINILM = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}


def make_run(config, dtype):
    """Our run, as run_classifier.py makes it."""
    settings = TrainingConfig(
        tempfile.gettempdir(),
        OptimizerConfig(5e-5, 10000, 100),
        _BATCH_SIZE.value,
        dtype=dtype,
        jit_compile=_JIT.value,
    )
    tokenizer = FullTokenizer(_VOCAB_FILE.value, do_lower_case=True)
    task = GlueTask("qnli", _DATA_DIR.value)
    return FinetuningRun(task, config, tokenizer, _LENGTH.value, settings, DistributionConfig())


def our_steps(run):
    """A function that trains for some steps and gives the seconds."""
    with run.strategy.scope():
        trainer = Trainer(run.model, run.training_config, run.strategy)
    data = run.training_data(run.features("train"))
    batches = iter(run.strategy.distribute_datasets_from_function(lambda c: data.from_step(0, c)))

    def train(steps):
        start = time.perf_counter()
        sum(trainer.steps(batches, steps))
        trainer.take_means()
        return time.perf_counter() - start

    return train


def their_steps(config_dir, examples_file, dtype):
    """The same with transformers, in a process of its own."""
    threads = len(os.sched_getaffinity(0))
    script = os.path.join(HERE, "peers", "transformers_training.py")
    command = [_COMPARE_PYTHON.value, script, config_dir, examples_file, dtype, _BATCH_SIZE.value, threads]
    process = subprocess.Popen(list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    if process.stdout.readline().strip() != "ready":
        raise SystemExit(f"{_COMPARE_PYTHON.value} could not run {script}; see above.")

    def train(steps):
        process.stdin.write(f"{steps}\n")
        process.stdin.flush()
        return float(process.stdout.readline())

    return train


def write_for_peer(folder, config, run):
    """Writes the model's size and the training sequences where another process finds them."""
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as writer:
        json.dump({**config.to_dict(), "model_type": "bert", "hidden_act": "gelu_new"}, writer)
    features, start = run.features("train"), 0
    path = os.path.join(folder, "examples.jsonl")
    with open(path, "w", encoding="utf-8") as writer:
        for length, first, label in zip(
            features.lengths.tolist(),
            features.first_lengths.tolist(),
            features.per_example["label_ids"].tolist(),
            strict=True,
        ):
            ids = features.input_ids[start : start + length].tolist()
            start += length
            row = {"input_ids": ids, "token_type_ids": [0] * first + [1] * (length - first), "label": label}
            writer.write(json.dumps(row) + "\n")
    return path


def measure(contenders):
    """Median sequences a second of each contender, which take turns."""
    rates = {name: [] for name in contenders}
    for train in contenders.values():
        train(2)
    for _ in range(_ROUNDS.value):
        for name, train in contenders.items():
            rates[name].append(WINDOW_STEPS * _BATCH_SIZE.value / train(WINDOW_STEPS))
    return {name: statistics.median(values) for name, values in rates.items()}


def main(_):
    vocab_size = len(FullTokenizer(_VOCAB_FILE.value, do_lower_case=True).vocab)
    config = BertConfig.from_json_file(_CONFIG_FILE.value) if _CONFIG_FILE.value else BertConfig(vocab_size, **MINILM)
    with tempfile.TemporaryDirectory() as folder:
        contenders = {}
        for dtype in _DTYPES.value:
            run = make_run(config, dtype)
            contenders[f"ours, {dtype}"] = our_steps(run)
            if _COMPARE_PYTHON.value:
                examples_file = write_for_peer(folder, config, run)
                contenders[f"transformers, {dtype}"] = their_steps(folder, examples_file, dtype)
        rates = measure(contenders)
    rows = []
    for name, rate in rates.items():
        row = {"contender": name, "sequences a second": rate}
        if _COMPARE_PYTHON.value:
            row["times transformers"] = rate / rates[f"transformers, {name.split(', ')[1]}"]
        rows.append(row)
    print(reporting.table(rows))
    if distribution.emulates_bfloat16():
        print("This processor has no instructions for bfloat16: neither side gains by it.")


if __name__ == "__main__":
    app.run(main)
