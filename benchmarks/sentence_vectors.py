"""Computes the vectors of sentences with this project or with sentence-transformers; see benchmarks/side_by_side.py.

Each contender is a separate process, on all cores that the command may use. It uses a GPU if one is available.
"""

import os
import sys
import tempfile
import time

import numpy as np

from benchmarks.common import QNLI_DIRECTORY, answer
from bert_tf.runtime import files

SENTENCES = 3000
# Both scripts read the sentences, encode one batch, then encode all sentences, and print the seconds for all.
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
    """Returns questions and sentences of QNLI's training set, alternating."""
    with open(os.path.join(QNLI_DIRECTORY, "train.tsv"), encoding="utf-8") as reader:
        next(reader)
        return [text for line in reader for text in line.split("\t")[1:3]][:SENTENCES]


def measure(python: str | None, model: str, dtype: str) -> tuple[dict[str, float], np.ndarray]:
    """Runs sentence-transformers in the interpreter `python`, or this project if None. Returns seconds and vectors."""
    program = [sys.executable, "-c", _OURS] if python is None else [python, "-c", _THEIRS]
    with tempfile.TemporaryDirectory() as directory:
        texts, vectors = os.path.join(directory, "texts.json"), os.path.join(directory, "vectors.npy")
        files.write_json(texts, sentences())
        start = time.perf_counter()
        encoding = answer([*program, model, dtype, texts, vectors])
        return {"encoding": encoding, "start to end": time.perf_counter() - start}, np.load(vectors)
