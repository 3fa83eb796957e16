"""Measures the latency of a served model from text to probabilities, and its throughput on texts of mixed lengths.

    taskset -c 0,1 python -m benchmarks.serving [--rounds=5] [--dtype=bfloat16]
        [--compare_python=VENV/bin/python]      (with torch and transformers, and optionally onnx and onnxruntime)

A classifier of BERT-base's size with random weights is exported. The contenders run in separate processes:

- the exported model
- the same model in LiteRT, with weights in 8 bits and in float32
- the same model in ONNX Runtime, with weights in 8 bits and in float32, if tf2onnx and onnxruntime are installed
- the ONNX model with 8-bit weights in OpenVINO, if openvino is installed too
- Hugging Face's model and tokenizer on PyTorch, in float32 and bfloat16
- Hugging Face's model in ONNX Runtime

The contenders alternate, so that other load on the machine affects all of them equally. There are four tables:

1. the latency of one text of 128 tokens
2. the throughput on batches of 32 QNLI pairs, as they are and padded to 128 tokens
3. the time from the start of a process to its first answer
4. the contenders' answers to QNLI pairs, compared with the answers of the exported model

With --model_dir=RUN, the model is a finished run on pairs of texts. Every contender uses `--threads` threads. The
exported model runs as in `bert_tf.predict`, which arranges the weights for the CPU once; to turn this off, set
TF_ONEDNN_ASSUME_FROZEN_WEIGHTS=0 in the environment. The program takes about five minutes, and 2 GB of memory per
contender.
"""

import csv
import functools
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
from absl import app, flags

from benchmarks.common import PEERS, QNLI_DIRECTORY, ROOT, VOCAB_FILE, Peer, seconds
from bert_tf.runtime import lazy_imports
from bert_tf.serving.export_config import LITE_FILE, LITE_INT8_FILE

_VOCAB_FILE = flags.DEFINE_string("vocab_file", VOCAB_FILE, "Vocabulary of an uncased model.")
_QNLI_FILE = flags.DEFINE_string("qnli_file", f"{QNLI_DIRECTORY}/dev.tsv", "File with pairs of mixed lengths.")
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Measurements of each contender.")
_CALLS = flags.DEFINE_integer("calls", 20, "Texts per measurement.")
_BATCHES = flags.DEFINE_integer("batches", 4, "Batches per measurement.")
_THREADS = flags.DEFINE_integer("threads", 2, "Threads of each contender.")
_DTYPE = flags.DEFINE_enum("dtype", "float32", ["float32", "bfloat16"], "Data type of the exported model.")
_MODEL_SIZE = flags.DEFINE_string("model_size", "base", "Released size of the model.")
_COMPARE_PYTHON = flags.DEFINE_string("compare_python", None, "Python interpreter with transformers and torch.")
_MODEL_DIR = flags.DEFINE_string("model_dir", None, "Finished run on pairs of texts. Default: random weights.")
_ROLES = ["main", "exporter", "worker", "litert", "onnxruntime", "openvino"]
_ROLE = flags.DEFINE_enum("role", "main", _ROLES, "Internal: job of a process that this program starts.")
_DIRECTORY = flags.DEFINE_string("directory", None, "Internal: directory of the exported model.")

LITE_FILES = {"int8": LITE_INT8_FILE, "float32": LITE_FILE}
# Name of a contender -> role, and the file that it reads.
ID_MODELS = {
    "exported float32, ONNX Runtime": ("onnxruntime", "ids.onnx"),
    "exported int8, ONNX Runtime": ("onnxruntime", "ids_int8.onnx"),
    "exported int8, OpenVINO": ("openvino", "ids_int8.onnx"),
}
LENGTH = 128
BATCH = 32


def has_module(name):
    """Returns True if a package is installed."""
    return importlib.util.find_spec(name) is not None


def export(directory):
    """Exports the classifier that is measured."""
    import keras

    import bert_tf.export
    from bert_tf.config import BertConfig
    from bert_tf.finetuning.models import ClassifierModel
    from bert_tf.graphs.classifier import ServedClassifier
    from bert_tf.graphs.encoder import InferenceEncoder
    from bert_tf.graphs.exportable import Exportable, plain_logits
    from bert_tf.serving.export_config import ExportConfig
    from bert_tf.serving.lite_model import TextSettings
    from bert_tf.text import Tokenizer

    keras.utils.set_random_seed(0)
    tokenizer, labels, inputs = Tokenizer(_VOCAB_FILE.value), ["yes", "no"], ["text_a", "text_b"]
    model = ClassifierModel(BertConfig.named(_MODEL_SIZE.value, vocab_size=len(tokenizer.vocab)), 2)
    # Initially, biases are 0 and scales are 1. TensorFlow would remove them, and would then fuse no operations.
    for variable in model.encoder.weights:
        variable.assign_add(keras.random.normal(variable.shape, stddev=0.01))
    encoder = InferenceEncoder(model.encoder, _DTYPE.value, head=model.head)
    settings = TextSettings(inputs=inputs, problem="classification", labels=labels, max_seq_length=LENGTH)
    served = ServedClassifier(encoder, tokenizer, settings)
    exportable = Exportable(served, plain_logits(model), tokenizer, LENGTH, labels, settings)
    if _MODEL_DIR.value:
        exportable = bert_tf.export.build(_MODEL_DIR.value, ExportConfig(_DTYPE.value, max_seq_length=LENGTH))
    has_onnx = has_module("tf2onnx") and has_module("onnxruntime")
    exportable.write(directory, ExportConfig(onnx=has_onnx, onnx_int8=has_onnx))
    exportable.write(f"{directory}/int8", ExportConfig(quantize="int8"))
    exportable.write(f"{directory}/float32", ExportConfig(litert=True))


def texts_of_length(pairs, tokenizer):
    """Returns variants of the pairs that have exactly the model's sequence length."""
    result = []
    for text_a, text_b in pairs:
        words = (text_b + " ").split() * 20
        room = LENGTH - 3 - len(tokenizer.encode(text_a))
        ids = [tokenizer.encode(word) for word in words]
        while sum(map(len, ids)) > room:
            ids.pop()
        padding = ["a"] * (room - sum(map(len, ids)))
        result.append((text_a, " ".join(words[: len(ids)] + padding)))
    return result


def serve(directory):
    """Runs a worker, which loads the model and then measures the batches of each request on standard input."""
    start = time.perf_counter()
    lazy_imports.import_tensorflow_for_serving()
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(_THREADS.value)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    imported = time.perf_counter()
    from bert_tf.serving.export_config import keep_packed_weights
    from bert_tf.serving.saved_model import ExportedModel

    keep_packed_weights()
    model = ExportedModel(directory)
    loaded = time.perf_counter()
    model(text_a=tf.constant(["a"]), text_b=tf.constant(["b"]))
    answered = time.perf_counter()
    ids = ExportedModel(directory, "token_ids")
    times = {"import": imported - start, "load": loaded - imported, "first answer": answered - loaded}
    print(json.dumps(times), flush=True)

    def answer(pairs):
        columns = zip(*pairs, strict=True)
        texts = {name: tf.constant(column) for name, column in zip(("text_a", "text_b"), columns, strict=True)}
        return model(**texts)["probabilities"]

    def answer_padded(pairs):
        row = tf.zeros([len(pairs), LENGTH], tf.int32) + 7
        ids(input_ids=row, input_mask=row // 7, segment_ids=row // 7)

    answer_requests(lambda request: answer_padded if request["padded"] else answer)


def serve_litert(directory):
    """Runs a worker like `serve`, with LiteRT."""
    start = time.perf_counter()
    from bert_tf.serving.lite_model import LiteModel

    imported = time.perf_counter()
    model = LiteModel(directory, _THREADS.value)
    loaded = time.perf_counter()

    def answer(pairs):
        return [row["probabilities"] for row in model.predict([{"text_a": a, "text_b": b} for a, b in pairs])]

    answer([("a", "b")])
    times = {"import": imported - start, "load": loaded - imported, "first answer": time.perf_counter() - loaded}
    print(json.dumps(times), flush=True)
    answer_requests(lambda request: answer)


def serve_ids(path, engine):
    """Runs a worker like `serve`, with an ONNX model in ONNX Runtime or OpenVINO. The model takes ids."""
    start = time.perf_counter()
    from bert_tf.sequences import packing
    from bert_tf.serving.answering import softmax
    from bert_tf.text import Tokenizer

    if engine == "onnxruntime":
        import onnxruntime
    else:
        import openvino
    imported = time.perf_counter()
    tokenizer = Tokenizer.checked(os.path.join(os.path.dirname(path), "vocab.txt"))
    if engine == "onnxruntime":
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = _THREADS.value, 1
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

        def logits(batch):
            return session.run(["logits"], batch)[0]
    else:
        compiled = openvino.Core().compile_model(path, "CPU", {"INFERENCE_NUM_THREADS": _THREADS.value})

        def logits(batch):
            return compiled(batch)["logits"]

    def answer(pairs):
        rows = [tokenizer.pack(a, b, LENGTH)[:2] for a, b in pairs]
        return [softmax(row) for row in logits(packing.pad_all(rows)).tolist()]

    loaded = time.perf_counter()
    answer([("a", "b")])
    answered = time.perf_counter()
    times = {"import": imported - start, "load": loaded - imported, "first answer": answered - loaded}
    print(json.dumps(times), flush=True)
    answer_requests(lambda request: answer)


def answer_requests(choose):
    """Answers the requests on standard input with probabilities, or with the seconds that each batch takes.

    Args:
      choose: returns the function that answers the batches of a request.
    """
    for line in sys.stdin:
        request = json.loads(line)
        answer, batches = choose(request), request["batches"]
        if request["answers"]:
            print(json.dumps([np.asarray(answer(batch)).tolist() for batch in batches]), flush=True)
        else:
            print(json.dumps([seconds(answer, batch) for batch in batches]), flush=True)


class Contender(Peer):
    """A process that has loaded a model."""

    def __init__(self, command):
        start = time.perf_counter()
        super().__init__(command, env={**os.environ, "OMP_NUM_THREADS": str(_THREADS.value)})
        self.startup = self.read()
        self.startup["all"] = time.perf_counter() - start

    def seconds(self, batches, padded=False):
        """Returns the seconds that each batch of pairs takes."""
        return self.ask({"batches": batches, "padded": padded, "answers": False})

    def probabilities(self, batches):
        """Returns the probabilities [pairs, classes]."""
        return np.concatenate(self.ask({"batches": batches, "padded": False, "answers": True}))


def alternate(contenders, batches, per_round):
    """Returns name -> seconds of every batch. The first round is for warming up and is not included."""
    measured = {name: [] for name in contenders}
    for number in range(_ROUNDS.value + 1):
        first = number * per_round % len(batches)
        selected = (batches + batches)[first : first + per_round]
        for name, measure in contenders.items():
            values = measure(selected)
            measured[name] += values if number else []
    return measured


def main(_):
    if _ROLE.value != "main":
        roles = {"exporter": export, "worker": serve, "litert": serve_litert}
        work = roles.get(_ROLE.value, functools.partial(serve_ids, engine=_ROLE.value))
        work(_DIRECTORY.value)
        return
    from bert_tf.config import BertConfig
    from bert_tf.runtime import reporting
    from bert_tf.text import Tokenizer

    with open(_QNLI_FILE.value, encoding="utf-8", newline="") as reader:
        rows = list(csv.DictReader(reader, delimiter="\t", quoting=csv.QUOTE_NONE))
    pairs = [(row["question"], row["sentence"]) for row in rows]
    tokenizer = Tokenizer(_VOCAB_FILE.value)
    full = [[pair] for pair in texts_of_length(pairs[: 4 * _CALLS.value], tokenizer)]
    mixed = [pairs[i : i + BATCH] for i in range(0, len(pairs) - BATCH + 1, BATCH)]
    tokens = [min(LENGTH, len(tokenizer.encode(a)) + len(tokenizer.encode(b)) + 3) for batch in mixed for a, b in batch]

    with tempfile.TemporaryDirectory() as directory:
        own = [sys.executable, "-m", "benchmarks.serving", *sys.argv[1:], f"--directory={directory}/model"]
        subprocess.run([*own, "--role=exporter"], cwd=ROOT, check=True)
        contenders = {f"exported {_DTYPE.value}": Contender([*own, "--role=worker"])}
        for name in LITE_FILES:
            contenders[f"exported {name}, LiteRT"] = Contender(
                [*own, f"--directory={directory}/model/{name}", "--role=litert"]
            )
        for name, (role, file) in ID_MODELS.items():
            if has_module(role) and os.path.exists(f"{directory}/model/{file}"):
                contenders[name] = Contender([*own, f"--directory={directory}/model/{file}", f"--role={role}"])
        own_contenders = dict(contenders)
        ours = next(iter(contenders.values()))
        if _COMPARE_PYTHON.value:
            peer = os.path.join(PEERS, "serving_requests.py")
            config = BertConfig.named(_MODEL_SIZE.value, vocab_size=len(tokenizer.vocab))
            settings = json.dumps(config.to_hf_dict("BertForSequenceClassification"))
            for kind in ("torch float32", "torch bfloat16", "onnxruntime float32"):
                command = [
                    _COMPARE_PYTHON.value,
                    peer,
                    kind,
                    settings,
                    _VOCAB_FILE.value,
                    str(_THREADS.value),
                    directory,
                ]
                contender = Contender(command)
                if "missing" in contender.startup:
                    print(f"{kind}: omitted, because {contender.startup['missing']}")
                else:
                    contenders[kind] = contender

        print(f"\nOne text of {LENGTH} tokens at a time, {_THREADS.value} threads, from text to probabilities:")
        measures = {name: contender.seconds for name, contender in contenders.items()}
        print(latencies(reporting, alternate(measures, full, _CALLS.value)))

        print(f"\nQNLI in batches of {BATCH} (mean {statistics.mean(tokens):.0f} tokens, at most {LENGTH}):")
        ways = {"without padding": ours.seconds, f"padded to {LENGTH}": lambda batches: ours.seconds(batches, True)}
        measured = alternate(ways, mixed, _BATCHES.value)
        throughput = {name: BATCH / statistics.median(values) for name, values in measured.items()}
        slowest = min(throughput.values())
        rows = [{"batches": x, "pairs per second": speed, "ratio": speed / slowest} for x, speed in throughput.items()]
        print(reporting.table(rows))

        print("\nSeconds from the start of a process to the first answer:")
        print(reporting.table([{"contender": name, **process.startup} for name, process in contenders.items()]))

        batches = mixed[: _ROUNDS.value * _BATCHES.value]
        print(f"\nAnswers to {BATCH * len(batches)} QNLI pairs, compared with the first contender:")
        answers = {name: contender.probabilities(batches) for name, contender in own_contenders.items()}
        print(reporting.table(agreement(answers)))
        for contender in contenders.values():
            contender.close()


def agreement(answers):
    """Returns the rows of a table that compares the probabilities with the first contender's."""
    first = next(iter(answers.values()))
    return [
        {
            "contender": name,
            "same class": np.mean(values.argmax(axis=-1) == first.argmax(axis=-1)),
            "largest difference": np.abs(values - first).max(),
        }
        for name, values in answers.items()
    ]


def latencies(reporting, measured):
    """Returns a table of each contender's milliseconds, also relative to the exported model."""
    medians = {name: 1e3 * statistics.median(values) for name, values in measured.items()}
    ours = next(iter(medians.values()))
    return reporting.table(
        [
            {"contender": name, "median ms": median, "least ms": 1e3 * min(measured[name]), "times ours": median / ours}
            for name, median in medians.items()
        ]
    )


if __name__ == "__main__":
    app.run(main)
