"""Measures the time of SQuAD's text processing before and after the model, for complete files and for single questions.

    taskset -c 0 python -m benchmarks.squad_text [--squad_file=dev-v1.1.json] [--vocab_file=vocab.txt] [--rounds=5]

Three contenders compute the same windows, and write the same files from the same logits, which is checked:

- "characters" works like the original code. It tokenizes the paragraph again for each question, one character after the
  other without a cache. It realigns each answer with tables of its characters, and uses Python's own indented JSON.
- "functions" are the original functions as implemented here.
- "files" are the functions that the program uses.

They alternate, so that other load on the machine affects all of them equally. The table shows the median CPU seconds of
each one. The logits are synthetic: noise, or less noise with a peak in each window. It takes about two minutes.
"""

import contextlib
import filecmp
import functools
import gc
import os
import tempfile
import time
from unittest import mock

import numpy as np
from absl import app, flags

from benchmarks.common import SQUAD_FILE, VOCAB_FILE, medians, seconds
from benchmarks.released_tokenizer import CharacterTokenizer, ForgetfulTokenizer
from bert_tf.runtime import reporting
from bert_tf.tasks import original_api, squad
from bert_tf.text import Tokenizer

_SQUAD_FILE = flags.DEFINE_string("squad_file", SQUAD_FILE, "SQuAD file with the questions to answer.")
_VOCAB_FILE = flags.DEFINE_string("vocab_file", VOCAB_FILE, "Vocabulary of an uncased model.")
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Measurements of each contender.")
_MAX_SEQ_LENGTH = flags.DEFINE_integer("max_seq_length", 384, "Length of the windows.")
_DOC_STRIDE = flags.DEFINE_integer("doc_stride", 128, "Number of tokens between the starts of two windows.")

MAX_QUERY_LENGTH = 64


def character_final_text(pred_text, orig_text, do_lower_case, verbose_logging=False):
    """Computes `get_final_text` with tables of the positions of all characters except spaces."""
    tok_text = " ".join(CharacterTokenizer(do_lower_case).tokenize(orig_text))
    start = tok_text.find(pred_text)
    orig_positions = [position for position, char in enumerate(orig_text) if char != " "]
    tok_positions = [position for position, char in enumerate(tok_text) if char != " "]
    if start < 0 or len(orig_positions) != len(tok_positions):
        return orig_text
    number_at = {position: number for number, position in enumerate(tok_positions)}
    first, last = number_at.get(start), number_at.get(start + len(pred_text) - 1)
    if first is None or last is None:
        return orig_text
    return orig_text[orig_positions[first] : orig_positions[last] + 1]


@contextlib.contextmanager
def slow_decoding():
    """Makes `write_predictions` as slow as the original code."""
    with mock.patch.object(original_api, "get_final_text", character_final_text):
        yield


def features_by_question(examples, tokenizer):
    """Computes the features with the original function."""
    features = []
    original_api.convert_examples_to_features(
        examples,
        tokenizer,
        _MAX_SEQ_LENGTH.value,
        _DOC_STRIDE.value,
        MAX_QUERY_LENGTH,
        is_training=False,
        output_fn=features.append,
    )
    return features


def features_one_by_one(examples, tokenizer):
    """Computes the features with the original function for each question separately, so that no work is shared."""
    return [feature for example in examples for feature in features_by_question([example], tokenizer)]


def windows_of_file(examples, tokenizer):
    """Computes the features with the program's function."""
    config = squad.SquadConfig(_MAX_SEQ_LENGTH.value, _DOC_STRIDE.value, MAX_QUERY_LENGTH)
    return squad.featurize(examples, tokenizer, config, is_training=False)


def synthetic_logits(windows, peaks):
    """Returns start and end logits [2, W, T]."""
    rng = np.random.default_rng(0)
    logits = rng.normal(-9.0, 1.5 if peaks else 3.0, [2, len(windows), _MAX_SEQ_LENGTH.value])
    if peaks:
        text_lengths = windows.lengths - 1 - windows.first_lengths
        answers = windows.first_lengths + (rng.random(len(windows)) * text_lengths).astype(int)
        distances = np.arange(_MAX_SEQ_LENGTH.value) - answers[:, None]
        logits += 12.0 * np.exp(-np.abs(np.stack([distances, distances - 2])) / 6.0)
    return logits.astype(np.float32)


def measure(contenders):
    """Returns the median CPU seconds of each contender, and its last result."""
    results = {}

    def measured(name, prepare, work):
        def run():
            results[name] = work(*arguments)

        arguments = prepare()
        gc.collect()
        gc.freeze()  # other contenders' objects do not slow down this contender's garbage collection
        elapsed = seconds(run, clock=time.process_time)
        gc.unfreeze()
        return elapsed

    functions = {name: functools.partial(measured, name, *contender) for name, contender in contenders.items()}
    return medians(functions, _ROUNDS.value), results


def row(part, seconds):
    """Returns a row of the table."""
    slow, middle, fast = (seconds[name] for name in ("characters", "functions", "files"))
    return {
        "part": part,
        "characters": slow,
        "functions": middle,
        "files": fast,
        "characters/files": slow / fast,
        "functions/files": middle / fast,
    }


def measure_features(examples):
    """Measures the time from questions to windows. Each measurement begins with a new tokenizer."""
    vocab_file = _VOCAB_FILE.value
    seconds, results = measure(
        {
            "characters": (lambda: (examples, ForgetfulTokenizer(vocab_file)), features_one_by_one),
            "functions": (lambda: (examples, Tokenizer(vocab_file)), features_by_question),
            "files": (lambda: (examples, Tokenizer(vocab_file)), windows_of_file),
        }
    )
    windows = results["files"]
    batch = windows.batch(np.arange(len(windows)), _MAX_SEQ_LENGTH.value)
    for name in ("characters", "functions"):
        assert batch["input_ids"].tolist() == [feature.input_ids for feature in results[name]]
        assert batch["segment_ids"].tolist() == [feature.segment_ids for feature in results[name]]
    return row("featurise", seconds), windows, results["functions"]


def measure_decoding(examples, windows, features, peaks, directory):
    """Measures the time from logits to written files."""
    start_logits, end_logits = synthetic_logits(windows, peaks)
    columns = windows.unique_ids.tolist(), start_logits.tolist(), end_logits.tolist()
    results = [original_api.RawResult(*result) for result in zip(*columns, strict=True)]
    files = {
        name: [os.path.join(directory, f"{name}.{kind}.json") for kind in ("predictions", "nbest")]
        for name in ("characters", "functions", "files")
    }

    def by_question(name, context):
        with context:
            predictions_file, n_best_file = files[name]
            original_api.write_predictions(
                examples,
                features,
                results,
                n_best_size=20,
                max_answer_length=30,
                do_lower_case=True,
                output_prediction_file=predictions_file,
                output_nbest_file=n_best_file,
                output_null_log_odds_file="",
            )

    def whole_file():
        released = squad.SquadConfig(pad_to_max_seq_length=True)
        predictions = squad.decode(examples, windows, start_logits, end_logits, config=released)
        predictions.write(*files["files"])

    seconds, _ = measure(
        {
            "characters": (lambda: ("characters", slow_decoding()), by_question),
            "functions": (lambda: ("functions", contextlib.nullcontext()), by_question),
            "files": (lambda: (), whole_file),
        }
    )
    for first, *others in zip(*files.values(), strict=True):
        assert all(filecmp.cmp(first, other, shallow=False) for other in others)
    return row("decode, peaks" if peaks else "decode, noise", seconds)


def main(_):
    """Prints the table."""
    examples = squad.read_squad(_SQUAD_FILE.value, is_training=False).examples
    features_row, windows, features = measure_features(examples)
    with tempfile.TemporaryDirectory() as directory:
        rows = [features_row] + [
            measure_decoding(examples, windows, features, peaks, directory) for peaks in (False, True)
        ]
    print(f"{len(examples)} questions, {len(windows)} windows; CPU seconds, median of {_ROUNDS.value}")
    print(reporting.table(rows))


if __name__ == "__main__":
    app.run(main)
