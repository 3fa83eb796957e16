"""Computes the vectors of sentences with this project and with sentence-transformers, side by side.

    python -m benchmarks.sentence_vectors --model=FOLDER --compare_python=PATH [--sentences=3000] [--rounds=3]

FOLDER is a directory of sentence-transformers, and PATH the interpreter of an environment with sentence-transformers.
The two contenders alternate, each in a separate process on all cores that the command may use. A round encodes all
sentences once. The table shows medians of the rounds: sentences per second, and seconds from start to end, including
loading the model. The last column is the largest difference from the float32 vectors of sentence-transformers. Each
contender uses a GPU if it finds one.
"""

import functools
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence

import numpy as np
from absl import app, flags

from benchmarks.common import QNLI_FOLDER, answer, medians
from bert_tf.runtime import reporting

_MODEL = flags.DEFINE_string("model", None, "Directory of sentence-transformers.")
_COMPARE_PYTHON = flags.DEFINE_string("compare_python", None, "Interpreter with sentence-transformers.")
_SENTENCES = flags.DEFINE_integer("sentences", 3000, "Number of sentences from QNLI.")
_ROUNDS = flags.DEFINE_integer("rounds", 3, "Processes of each contender.")

# Both scripts read the sentences, encode one batch, then encode all, and print the seconds for all.
_OURS = """
import json, sys, time
import numpy as np
import bert_tf
model, dtype, texts, vectors = sys.argv[1:]
encoder = bert_tf.SentenceEncoder.from_pretrained(model, dtype=dtype)
texts = json.load(open(texts))
encoder.encode(texts[:32])
start = time.perf_counter()
found = encoder.encode(texts)
print(time.perf_counter() - start)
np.save(vectors, found)
"""
_THEIRS = """
import json, sys, time
import numpy as np, torch
from sentence_transformers import SentenceTransformer
model, dtype, texts, vectors = sys.argv[1:]
encoder = SentenceTransformer(model, model_kwargs={"dtype": getattr(torch, dtype)})
texts = json.load(open(texts))
encoder.encode(texts[:32], show_progress_bar=False)
start = time.perf_counter()
found = encoder.encode(texts, convert_to_tensor=True, show_progress_bar=False)
print(time.perf_counter() - start)
np.save(vectors, found.float().cpu().numpy())
"""


def sentences() -> list[str]:
    """Returns the questions and sentences of QNLI's training set, in turn."""
    with open(os.path.join(QNLI_FOLDER, "train.tsv"), encoding="utf-8") as reader:
        next(reader)
        return [text for line in reader for text in line.split("\t")[1:3]][: _SENTENCES.value]


def measured(command: Sequence[str], dtype: str, texts: str, vectors: str) -> tuple[float, float]:
    """Runs a contender. Returns the seconds for encoding, and the seconds from start to end."""
    start = time.perf_counter()
    encoding = answer([*command, os.path.abspath(_MODEL.value), dtype, texts, vectors])
    return encoding, time.perf_counter() - start


def main(_) -> None:
    commands = {
        "bert_tf": [sys.executable, "-c", _OURS],
        "sentence-transformers": [_COMPARE_PYTHON.value, "-c", _THEIRS],
    }
    contenders = [(name, dtype) for dtype in ("float32", "bfloat16") for name in commands]
    with tempfile.TemporaryDirectory() as folder:
        texts = os.path.join(folder, "texts.json")
        with open(texts, "w", encoding="utf-8") as writer:
            json.dump(sentences(), writer)
        paths = {(name, dtype): os.path.join(folder, f"{name}-{dtype}.npy") for name, dtype in contenders}
        functions = {
            (name, dtype): functools.partial(measured, commands[name], dtype, texts, path)
            for (name, dtype), path in paths.items()
        }
        seconds = medians(functions, _ROUNDS.value)
        found = {contender: np.load(path) for contender, path in paths.items()}
    rows = []
    for name, dtype in contenders:
        encoding, total = seconds[name, dtype]
        peer_encoding, peer_total = seconds["sentence-transformers", dtype]
        difference = np.abs(found[name, dtype] - found["sentence-transformers", "float32"]).max()
        rows.append(
            {
                "contender": f"{name}, {dtype}",
                "sentences a second": _SENTENCES.value / encoding,
                "ratio": peer_encoding / encoding,
                "start to end, s": total,
                "start to end, ratio": total / peer_total,
                "largest difference": float(difference),
            }
        )
    print(reporting.table(rows))


if __name__ == "__main__":
    flags.mark_flags_as_required(["model", "compare_python"])
    app.run(main)
