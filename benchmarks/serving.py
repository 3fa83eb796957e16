"""How long a served model takes, from text to probabilities, and how much it answers when sentences differ in length.

    taskset -c 0,1 python -m benchmarks.serving [--rounds=5] [--dtype=bfloat16]
        [--compare_python=VENV/bin/python]      (transformers and torch there; onnxruntime and onnx if it has them)

A classifier of BERT-base's size with random weights is exported and loaded in a process of its own, as are its
contenders: its `ids_int8.tflite` in LiteRT behind the Python tokenizer, Hugging Face's model and tokenizer on PyTorch
in float32 and bfloat16, and that model in ONNX Runtime.
They take turns, so that whatever else the machine does falls on all of them. Three tables: one text of 128 tokens at a
time; batches of 32 QNLI pairs against the same batches padded to 128 tokens; and the way from a new process to its
first answer. All use as many threads as `--threads`; takes about five minutes, and 2 GB of memory for each contender.
"""

import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
from absl import app, flags

from benchmarks.shared_data import QNLI_FOLDER, VOCAB_FILE

_VOCAB_FILE = flags.DEFINE_string("vocab_file", VOCAB_FILE, "Of an uncased model.")
_QNLI_FILE = flags.DEFINE_string("qnli_file", f"{QNLI_FOLDER}/dev.tsv", "Pairs of mixed length.")
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Turns of each contender.")
_CALLS = flags.DEFINE_integer("calls", 20, "Texts in a turn.")
_BATCHES = flags.DEFINE_integer("batches", 4, "Batches in a turn.")
_THREADS = flags.DEFINE_integer("threads", 2, "Of each contender.")
_DTYPE = flags.DEFINE_enum("dtype", "float32", ["float32", "bfloat16"], "Of the exported model.")
_MODEL_SIZE = flags.DEFINE_string("model_size", "base", "One of the release's sizes.")
_COMPARE_PYTHON = flags.DEFINE_string("compare_python", None, "A Python that has transformers and torch.")
_ROLE = flags.DEFINE_enum("role", "judge", ["judge", "exporter", "worker", "litert"], "Used by the program itself.")
_FOLDER = flags.DEFINE_string("folder", None, "Used by the program itself: the exported model.")

LENGTH = 128
BATCH = 32


def export(folder):
    """The classifier that is measured."""
    import keras

    from bert_tf.config import BertConfig
    from bert_tf.finetuning.models import ClassifierModel
    from bert_tf.serving import finished_run, portable_models, saved_model
    from bert_tf.serving.encoder import InferenceEncoder
    from bert_tf.serving.reader import TextReader
    from bert_tf.tasks.served import ServedClassifier
    from bert_tf.tokenization import FullTokenizer

    keras.utils.set_random_seed(0)
    tokenizer = FullTokenizer(_VOCAB_FILE.value)
    model = ClassifierModel(BertConfig.named(_MODEL_SIZE.value, vocab_size=len(tokenizer.vocab)), 2)
    encoder = InferenceEncoder(model.encoder, _DTYPE.value)
    texts = TextReader(tokenizer, LENGTH)
    options = {"labels": ["yes", "no"], "multi_label": False, "is_pair": True}
    saved_model.write(ServedClassifier(encoder, model.head, texts, **options), folder)
    portable_models.write_lite(finished_run.plain_logits(model), os.path.join(folder, portable_models.LITE_FILE))


def texts_of_length(pairs, tokenizer):
    """A pair that fills the model's length exactly, in several wordings."""
    found = []
    for text_a, text_b in pairs:
        words = (text_b + " ").split() * 20
        room = LENGTH - 3 - len(tokenizer.encode(text_a))
        ids = [tokenizer.encode(word) for word in words]
        while sum(map(len, ids)) > room:
            ids.pop()
        padding = ["a"] * (room - sum(map(len, ids)))
        found.append((text_a, " ".join(words[: len(ids)] + padding)))
    return found


def serve(folder):
    """A worker: loads the model, then measures what it is asked to on standard input."""
    start = time.perf_counter()
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(_THREADS.value)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    imported = time.perf_counter()
    from bert_tf.serving import saved_model

    model = saved_model.load(folder)
    loaded = time.perf_counter()
    model(text_a=tf.constant(["a"]), text_b=tf.constant(["b"]))
    answered = time.perf_counter()
    ids = saved_model.load(folder, "ids")
    times = {"import": imported - start, "load": loaded - imported, "first answer": answered - loaded}
    print(json.dumps(times), flush=True)

    def answer(pairs):
        columns = zip(*pairs, strict=True)
        model(**{name: tf.constant(texts) for name, texts in zip(("text_a", "text_b"), columns, strict=True)})

    def answer_padded(pairs):
        row = tf.zeros([len(pairs), LENGTH], tf.int32) + 7
        ids(input_ids=row, input_mask=row // 7, segment_ids=row // 7)

    answer_requests(lambda request: answer_padded if request["padded"] else answer)


def serve_litert(folder):
    """A worker as `serve`, with the model of eight bits."""
    start = time.perf_counter()
    from ai_edge_litert.interpreter import Interpreter
    from scipy.special import softmax

    from bert_tf.sequences import packing
    from bert_tf.serving.portable_models import LITE_FILE
    from bert_tf.tasks.sentence_features import InputExample, pack_example
    from bert_tf.tokenization import FullTokenizer

    imported = time.perf_counter()
    tokenizer = FullTokenizer(_VOCAB_FILE.value)
    model = Interpreter(os.path.join(folder, LITE_FILE), num_threads=_THREADS.value).get_signature_runner()
    loaded = time.perf_counter()

    def answer(pairs):
        packed = [pack_example(InputExample("", *pair), LENGTH, tokenizer) for pair in pairs]
        length = max(len(ids) for ids, _ in packed)
        ids, mask, segments = zip(*(packing.pad(*each, length) for each in packed), strict=True)
        columns = {"input_ids": ids, "input_mask": mask, "segment_ids": segments}
        logits = model(**{name: np.array(rows, np.int32) for name, rows in columns.items()})["logits"]
        return softmax(logits, axis=-1)

    answer([("a", "b")])
    times = {"import": imported - start, "load": loaded - imported, "first answer": time.perf_counter() - loaded}
    print(json.dumps(times), flush=True)
    answer_requests(lambda request: answer)


def answer_requests(choose):
    """Times the function that is chosen for each request of standard input."""
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(time_batches(choose(request), request["batches"])), flush=True)


def time_batches(function, batches):
    """Seconds that each batch takes."""
    seconds = []
    for batch in batches:
        start = time.perf_counter()
        function(batch)
        seconds.append(time.perf_counter() - start)
    return seconds


def environment():
    """Of the processes: they find this project, and use so many threads."""
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    return {**os.environ, "OMP_NUM_THREADS": str(_THREADS.value), "PYTHONPATH": root}


class Contender:
    """A process that holds a model."""

    def __init__(self, command):
        start = time.perf_counter()
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
        )
        self.startup = json.loads(self._process.stdout.readline())
        self.startup["all"] = time.perf_counter() - start

    def seconds(self, batches, padded=False):
        """Seconds for each batch of pairs."""
        self._process.stdin.write(json.dumps({"batches": batches, "padded": padded}) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self):
        """Ends the process."""
        self._process.stdin.close()
        self._process.wait()


def take_turns(contenders, batches, per_turn):
    """Name -> seconds of every batch, after a round that isn't counted."""
    seconds = {name: [] for name in contenders}
    for turn in range(_ROUNDS.value + 1):
        first = turn * per_turn % len(batches)
        some = (batches + batches)[first : first + per_turn]
        for name, measure in contenders.items():
            measured = measure(some)
            seconds[name] += measured if turn else []
    return seconds


def main(_):
    if _ROLE.value != "judge":
        {"exporter": export, "worker": serve, "litert": serve_litert}[_ROLE.value](_FOLDER.value)
        return
    from bert_tf.config import BertConfig
    from bert_tf.runtime import reporting
    from bert_tf.tokenization import FullTokenizer

    with open(_QNLI_FILE.value, encoding="utf-8", newline="") as reader:
        rows = list(csv.DictReader(reader, delimiter="\t", quoting=csv.QUOTE_NONE))
    pairs = [(row["question"], row["sentence"]) for row in rows]
    tokenizer = FullTokenizer(_VOCAB_FILE.value)
    full = [[pair] for pair in texts_of_length(pairs[: 4 * _CALLS.value], tokenizer)]
    mixed = [pairs[i : i + BATCH] for i in range(0, len(pairs) - BATCH + 1, BATCH)]
    tokens = [min(LENGTH, len(tokenizer.encode(a)) + len(tokenizer.encode(b)) + 3) for batch in mixed for a, b in batch]

    with tempfile.TemporaryDirectory() as folder:
        own = [sys.executable, *sys.argv, f"--folder={folder}/model"]
        subprocess.run([*own, "--role=exporter"], env=environment(), check=True)
        contenders = {f"exported {_DTYPE.value}": Contender([*own, "--role=worker"])}
        contenders["exported int8, LiteRT"] = Contender([*own, "--role=litert"])
        ours = next(iter(contenders.values()))
        if _COMPARE_PYTHON.value:
            peer = os.path.join(os.path.dirname(__file__), "peers", "serving_requests.py")
            config = BertConfig.named(_MODEL_SIZE.value, vocab_size=len(tokenizer.vocab))
            settings = json.dumps(config.to_hf_dict("BertForSequenceClassification"))
            for kind in ("torch float32", "torch bfloat16", "onnxruntime float32"):
                command = [_COMPARE_PYTHON.value, peer, kind, settings, _VOCAB_FILE.value, str(_THREADS.value), folder]
                contender = Contender(command)
                if "missing" in contender.startup:
                    print(f"{kind}: left out, because {contender.startup['missing']}")
                else:
                    contenders[kind] = contender

        print(f"\nOne text of {LENGTH} tokens at a time, {_THREADS.value} threads, from text to probabilities:")
        seconds = take_turns({name: each.seconds for name, each in contenders.items()}, full, _CALLS.value)
        print(latencies(reporting, seconds))

        print(f"\nQNLI in batches of {BATCH} (mean {statistics.mean(tokens):.0f} tokens, at most {LENGTH}):")
        ways = {"as long as they are": ours.seconds, f"padded to {LENGTH}": lambda some: ours.seconds(some, True)}
        seconds = take_turns(ways, mixed, _BATCHES.value)
        throughput = {name: BATCH / statistics.median(each) for name, each in seconds.items()}
        slowest = min(throughput.values())
        print(
            reporting.table(
                [{"way": name, "pairs per second": each, "ratio": each / slowest} for name, each in throughput.items()]
            )
        )

        print("\nFrom a new process to the first answer, seconds:")
        print(reporting.table([{"contender": name, **each.startup} for name, each in contenders.items()]))
        for contender in contenders.values():
            contender.close()


def latencies(reporting, seconds):
    """Milliseconds of each contender, and how many times ours."""
    medians = {name: 1e3 * statistics.median(each) for name, each in seconds.items()}
    ours = next(iter(medians.values()))
    return reporting.table(
        [
            {"contender": name, "median ms": median, "least ms": 1e3 * min(seconds[name]), "times ours": median / ours}
            for name, median in medians.items()
        ]
    )


if __name__ == "__main__":
    app.run(main)
