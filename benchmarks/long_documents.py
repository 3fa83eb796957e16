"""Measures the accuracy of --long_documents=truncate, head_tail and windows on documents of more than 512 tokens.

    python -m benchmarks.long_documents --model=DIRECTORY [--data=DIRECTORY] [--documents=60] [--seeds=3]
    [--dtype=bfloat16]

The task is to predict the author of a part of a book. A document consists of complete paragraphs, and has at least 513
tokens. Every second document is for testing. All settings train for the same number of steps, and on the same number of
sequences.
"""

import collections
import glob
import os
import statistics

from absl import app, flags

import bert_tf
from benchmarks.common import BOOKS_DIRECTORY
from bert_tf.runtime import reporting
from bert_tf.sequences.text_packer import MODES

AUTHORS = ("austen", "darwin", "gibbon", "melville")

_MODEL = flags.DEFINE_string("model", None, "Directory of a pre-trained checkpoint with its config and vocabulary.")
_DATA = flags.DEFINE_string(
    "data", BOOKS_DIRECTORY, "Directory of the books: AUTHOR_*.txt with a paragraph on each line."
)
_DOCUMENTS = flags.DEFINE_integer("documents", 60, "Number of documents of each author, for training and testing.")
_SEEDS = flags.DEFINE_integer("seeds", 3, "Number of runs with each setting.")
_LENGTH = flags.DEFINE_integer("max_seq_length", 64, "Longest sequence, in tokens.")
_STEPS = flags.DEFINE_integer("num_train_steps", 60, "Number of steps.")
_BATCH_SIZE = flags.DEFINE_integer("train_batch_size", 16, "Number of sequences in a step.")
_LEARNING_RATE = flags.DEFINE_float("learning_rate", 1e-4, "Peak learning rate.")
_DTYPE = flags.DEFINE_string("dtype", "float32", "Type of matrix multiplications.")

_LEAST_TOKENS = 513


def documents_of(path, tokenizer):
    """Yields each document of a book with its number of tokens."""
    paragraphs, tokens = [], 0
    with open(path, encoding="utf-8") as reader:
        for line in filter(str.strip, reader):
            paragraphs.append(line.strip())
            tokens += len(tokenizer.encode(line))
            if tokens >= _LEAST_TOKENS:
                yield "\n".join(paragraphs), tokens
                paragraphs, tokens = [], 0


def read_books(tokenizer):
    """Returns (text, number of tokens, author) of all documents, evenly spaced in the books of each author."""
    rows = []
    for author in AUTHORS:
        paths = sorted(glob.glob(os.path.join(_DATA.value, f"{author}_*.txt")))
        documents = [document for path in paths for document in documents_of(path, tokenizer)]
        spaced = [documents[i * len(documents) // _DOCUMENTS.value] for i in range(_DOCUMENTS.value)]
        rows += [(*document, author) for document in spaced]
    return rows


def main(_):
    tokenizer = bert_tf.Classifier.from_pretrained(_MODEL.value).tokenizer
    documents = read_books(tokenizer)
    texts, lengths, authors = zip(*documents, strict=True)
    median = statistics.median(lengths)
    print(f"{len(texts)} documents of {min(lengths)} to {max(lengths)} tokens (median {median:.0f})", flush=True)
    accuracy = collections.defaultdict(list)
    for seed in range(_SEEDS.value):
        for mode in MODES:
            options = {"max_seq_length": _LENGTH.value, "dtype": _DTYPE.value, "long_documents": mode}
            classifier = bert_tf.Classifier.from_pretrained(_MODEL.value, **options)
            steps = {"num_train_steps": _STEPS.value, "batch_size": _BATCH_SIZE.value}
            classifier.fit(texts[::2], authors[::2], learning_rate=_LEARNING_RATE.value, seed=seed, **steps)
            scores = classifier.evaluate(texts[1::2], authors[1::2], batch_size=64)
            accuracy[mode].append(100 * scores["accuracy"])
            print(f"seed {seed}, {mode}: {accuracy[mode][-1]:.1f}", flush=True)
    rows = [
        {
            "long_documents": mode,
            "accuracy": round(statistics.mean(values), 1),
            "deviation": round(statistics.stdev(values), 1) if len(values) > 1 else "",
        }
        for mode, values in accuracy.items()
    ]
    print(reporting.table(rows))


if __name__ == "__main__":
    flags.mark_flag_as_required("model")
    app.run(main)
