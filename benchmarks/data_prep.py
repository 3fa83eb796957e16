"""Measures the speed and the memory of data preparation, and compares the speed with the original algorithm.

    python -m benchmarks.data_prep [--parts=tokenization,program,...] [--text=DIRECTORY] [--rounds=3]

- tokenization: the CPU seconds from text to ids on one core, compared with the original rules applied to one character
  after the other (`released_tokenizer`). "warm" is a second pass over the same text. Goals: first pass 5 times as
  fast, second pass 10 times as fast.
- program: the CPU seconds of the complete program with one worker at --dupe_factor=10, compared with the original
  algorithm (`released_preparation`). The original's time excludes the import of TensorFlow; ours includes everything.
  Goal: at least 10 times as fast.
- workers: the seconds of four workers compared with one worker. Needs four idle cores. Goal: 3.3 times as fast.
- memory: the peak memory of all processes together for 100 MB and 500 MB of text (the same documents in different
  orders) at --dupe_factor=1. Goals: less than 2 GB, and the same for both sizes. Memory that several processes share
  is counted once (proportional set size).

All parts together take a long time. Use --parts to select some of them. The memory part needs 3 GB of disk space.
"""

import functools
import itertools
import os
import random
import resource
import subprocess
import sys
import tempfile
import time

from absl import app, flags

from benchmarks.common import BOOKS_DIRECTORY, VOCAB_FILE, answer, command, medians, seconds
from benchmarks.watched_process import run_watched
from bert_tf.runtime import reporting

_PARTS = flags.DEFINE_list("parts", ["tokenization", "program", "workers", "memory"], "Parts to measure.")
_TEXT = flags.DEFINE_string("text", BOOKS_DIRECTORY, "Directory of books with one paragraph per line.")
_VOCAB_FILE = flags.DEFINE_string("vocab_file", VOCAB_FILE, "The vocabulary of an uncased model.")
_ROUNDS = flags.DEFINE_integer("rounds", 3, "Measurements of each variant; the tables show medians.")
_MEGABYTES = flags.DEFINE_integer("megabytes", 4, "Size of the text for the program part.")
_WORKERS_MEGABYTES = flags.DEFINE_integer("workers_megabytes", 100, "Size of the text for the workers part.")
_MEMORY_MEGABYTES = flags.DEFINE_list("memory_megabytes", ["100", "500"], "Sizes of the texts for the memory part.")
_NUM_WORKERS = flags.DEFINE_integer("num_workers", 4, "Number of workers in the workers and memory parts.")

PARAGRAPHS_PER_DOCUMENT = 20
LENGTH, PREDICTIONS = 128, 20


def documents_of_books():
    """Returns the documents in --text. Each document is a list of sentences."""
    import sentencex

    paragraphs = []
    for name in sorted(os.listdir(_TEXT.value)):
        with open(os.path.join(_TEXT.value, name), encoding="utf-8") as reader:
            paragraphs += [line.strip() for line in reader if line.strip()]
    sentences = [[s for s in map(str.strip, sentencex.segment("en", p)) if s] for p in paragraphs]
    documents = [sentences[i : i + PARAGRAPHS_PER_DOCUMENT] for i in range(0, len(sentences), PARAGRAPHS_PER_DOCUMENT)]
    return [[sentence for paragraph in document for sentence in paragraph] for document in documents]


def write_text(documents, megabytes, path):
    """Writes the documents repeatedly in random order, one sentence per line, with blank lines between documents."""
    rng = random.Random(0)
    size = 0
    with open(path, "w", encoding="utf-8") as writer:
        while size < megabytes * 1e6:
            for document in rng.sample(documents, len(documents)):
                size += writer.write("\n".join(document) + "\n\n")
                if size >= megabytes * 1e6:
                    break
    return path


def preparation(text, output, **options):
    """Returns the command that prepares a text, as a list of arguments."""
    options = {
        "input_file": text,
        "output_file": output,
        "vocab_file": _VOCAB_FILE.value,
        "max_seq_length": LENGTH,
        "max_predictions_per_seq": PREDICTIONS,
        **options,
    }
    return command("-m", "data_prep.create_pretraining_data", **options)


def run(command):
    """Runs a command. Returns the elapsed seconds, and the CPU seconds of the command and its child processes."""
    before, start = processor_seconds(), time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start, processor_seconds() - before


def processor_seconds():
    """Returns the CPU seconds of all ended child processes of this process."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def add_speedup(rows, column, baseline):
    """Returns the rows with an additional column, the speed relative to the row `baseline`."""
    return [row | {"times as fast": baseline / row[column]} for row in rows]


def measure_tokenization(documents, directory):
    """Returns the table rows for the two tokenizers."""
    from benchmarks.released_tokenizer import ForgetfulTokenizer
    from bert_tf.text import Tokenizer

    sentences = [sentence for document in documents for sentence in document]
    megabytes = sum(len(sentence.encode()) for sentence in sentences) / 1e6

    def pass_over_text(encode):
        for sentence in sentences:
            encode(sentence)

    def measure():
        released, ours = ForgetfulTokenizer(_VOCAB_FILE.value), Tokenizer(_VOCAB_FILE.value)
        encoders = released.encode, ours.encode_to_bytes, ours.encode_to_bytes
        return [seconds(pass_over_text, encode, clock=time.process_time) for encode in encoders]

    names = "released rules, one by one", "ours, cold", "ours, warm"
    times = zip(names, medians({"all": measure}, _ROUNDS.value)["all"], strict=True)
    rows = [{"tokenizer": name, "CPU seconds": s, "MB/s": megabytes / s} for name, s in times]
    return add_speedup(rows, "CPU seconds", rows[0]["CPU seconds"])


def measure_program(documents, directory):
    """Returns the table rows for the original algorithm, and for this project with both orders of examples."""
    text = write_text(documents, _MEGABYTES.value, f"{directory}/program.txt")
    released = [
        sys.executable,
        "-m",
        "benchmarks.released_preparation",
        text,
        _VOCAB_FILE.value,
        f"{directory}/released",
    ]
    numbers = itertools.count()

    def ours(**options):
        return run(preparation(text, f"{directory}/ours-{next(numbers)}", dupe_factor=10, **options))[1]

    contenders = {
        "released algorithm": functools.partial(answer, released),
        "ours": functools.partial(ours, num_workers=1),
        "ours, --original_order": functools.partial(ours, original_order=True),
    }
    rows = [{"program": name, "CPU seconds": s} for name, s in medians(contenders, _ROUNDS.value).items()]
    return add_speedup(rows, "CPU seconds", rows[0]["CPU seconds"])


def measure_workers(documents, directory):
    """Returns the table rows for one worker and for several workers."""
    text = write_text(documents, _WORKERS_MEGABYTES.value, f"{directory}/workers.txt")
    output = f"{directory}/workers-out"

    def measure(workers):
        elapsed = run(preparation(text, output, dupe_factor=10, num_workers=workers))[0]
        os.remove(output)
        return elapsed

    contenders = {workers: functools.partial(measure, workers) for workers in (1, _NUM_WORKERS.value)}
    rows = [{"workers": workers, "seconds": s} for workers, s in medians(contenders, _ROUNDS.value).items()]
    return add_speedup(rows, "seconds", rows[0]["seconds"])


def measure_memory(documents, directory):
    """Returns a table row for each size in --memory_megabytes."""
    rows = []
    for megabytes in map(int, _MEMORY_MEGABYTES.value):
        text = write_text(documents, megabytes, f"{directory}/memory.txt")
        output = f"{directory}/memory-{megabytes}"
        needs = run_watched(preparation(text, output, dupe_factor=1, num_workers=_NUM_WORKERS.value))
        rows.append(
            {
                "MB of text": megabytes,
                "peak GB": needs.memory / 1e9,
                "processes": needs.processes,
                "seconds": needs.seconds,
                "MB written": os.path.getsize(output) / 1e6,
            }
        )
        os.remove(output)
    return rows


PARTS = {
    "tokenization": measure_tokenization,
    "program": measure_program,
    "workers": measure_workers,
    "memory": measure_memory,
}


def main(_):
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    documents = documents_of_books()
    for part in _PARTS.value:
        if part not in PARTS:
            raise app.UsageError(f"--parts: {part!r} is unknown. Use {', '.join(PARTS)}.")
        with tempfile.TemporaryDirectory() as directory:
            rows = PARTS[part](documents, directory)
        print(f"\n{part} (load of the machine: {os.getloadavg()[0]:.1f})\n{reporting.table(rows)}", flush=True)


if __name__ == "__main__":
    app.run(main)
