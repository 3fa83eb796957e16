"""How long SQuAD's text takes before and after the model: whole files at once against one question at a time.

    taskset -c 0 python -m benchmarks.squad_text [--squad_file=dev-v1.1.json] [--vocab_file=vocab.txt] [--rounds=5]

Three contenders make the same windows, and from the same logits write the same files (which is checked). "characters"
imitates the release: each question's paragraph is tokenized anew, by a tokenizer that looks at one character after the
other and remembers nothing; each answer is realigned with tables of its characters; and the files are written with
Python's own indented JSON. "functions" are the release's functions as they are here, and "files" is what the program
does. The contenders take turns, so other work on the machine slows all of them; the table gives each one's median of
CPU seconds. Logits are made up: noise, or less noise and a peak somewhere in each window. Takes about two minutes.
"""

import contextlib
import filecmp
import gc
import json
import os
import statistics
import tempfile
import time
from unittest import mock

import numpy as np
from absl import app, flags

from benchmarks.released_tokenizer import CharacterTokenizer, ForgetfulTokenizer
from benchmarks.shared_data import SQUAD_FILE, VOCAB_FILE
from bert_tf.runtime import reporting
from bert_tf.tasks import squad
from bert_tf.tasks.squad import predictions, released
from bert_tf.tokenization import FullTokenizer

_SQUAD_FILE = flags.DEFINE_string("squad_file", SQUAD_FILE, "Questions to answer.")
_VOCAB_FILE = flags.DEFINE_string("vocab_file", VOCAB_FILE, "Of an uncased model.")
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Turns of each contender.")
_MAX_SEQ_LENGTH = flags.DEFINE_integer("max_seq_length", 384, "Length of the windows.")
_DOC_STRIDE = flags.DEFINE_integer("doc_stride", 128, "Pieces between the starts of two windows.")

MAX_QUERY_LENGTH = 64


def character_final_text(pred_text, orig_text, do_lower_case, verbose_logging=False):
    """`get_final_text` with tables of where each character that is no space stands."""
    tok_text = " ".join(CharacterTokenizer(do_lower_case).tokenize(orig_text))
    start = tok_text.find(pred_text)
    places_in_orig = [place for place, char in enumerate(orig_text) if char != " "]
    places_in_tok = [place for place, char in enumerate(tok_text) if char != " "]
    if start < 0 or len(places_in_orig) != len(places_in_tok):
        return orig_text
    number_at = {place: number for number, place in enumerate(places_in_tok)}
    first, last = number_at.get(start), number_at.get(start + len(pred_text) - 1)
    if first is None or last is None:
        return orig_text
    return orig_text[places_in_orig[first] : places_in_orig[last] + 1]


@contextlib.contextmanager
def the_release_s_way():
    """`write_predictions` as slow as the release's."""
    with (
        mock.patch.object(released, "get_final_text", character_final_text),
        mock.patch.object(predictions, "_n_best_json", lambda n_best: json.dumps(n_best, indent=4)),
    ):
        yield


def features_by_question(examples, tokenizer):
    """The release's function."""
    features = []
    squad.convert_examples_to_features(
        examples, tokenizer, _MAX_SEQ_LENGTH.value, _DOC_STRIDE.value, MAX_QUERY_LENGTH, False, features.append
    )
    return features


def features_one_by_one(examples, tokenizer):
    """The release's function on each question alone, so that nothing is shared between questions."""
    return [feature for example in examples for feature in features_by_question([example], tokenizer)]


def windows_of_file(examples, tokenizer):
    """The program's function."""
    return squad.featurize(
        examples, tokenizer, _MAX_SEQ_LENGTH.value, _DOC_STRIDE.value, MAX_QUERY_LENGTH, is_training=False
    )


def made_up_logits(windows, peaks):
    """Start and end logits [2, W, T]."""
    rng = np.random.default_rng(0)
    logits = rng.normal(-9.0, 1.5 if peaks else 3.0, [2, len(windows), _MAX_SEQ_LENGTH.value])
    if peaks:
        text_lengths = windows.lengths - 1 - windows.first_lengths
        answers = windows.first_lengths + (rng.random(len(windows)) * text_lengths).astype(int)
        distances = np.arange(_MAX_SEQ_LENGTH.value) - answers[:, None]
        logits += 12.0 * np.exp(-np.abs(np.stack([distances, distances - 2])) / 6.0)
    return logits.astype(np.float32)


def measure(contenders):
    """Median CPU seconds of each contender, and what it made in its last turn."""
    seconds = {name: [] for name in contenders}
    made = {}
    for _ in range(_ROUNDS.value):
        for name, (prepare, work) in contenders.items():
            arguments = prepare()
            gc.collect()
            gc.freeze()  # what the others have made is no burden on this one
            start = time.process_time()
            made[name] = work(*arguments)
            seconds[name].append(time.process_time() - start)
            gc.unfreeze()
    return {name: statistics.median(values) for name, values in seconds.items()}, made


def row(what, seconds):
    """A line of the table."""
    slow, middle, fast = (seconds[name] for name in ("characters", "functions", "files"))
    return {
        "what": what,
        "characters": slow,
        "functions": middle,
        "files": fast,
        "characters/files": slow / fast,
        "functions/files": middle / fast,
    }


def measure_features(examples):
    """Each turn begins with a tokenizer that has seen nothing."""
    vocab_file = _VOCAB_FILE.value
    seconds, made = measure(
        {
            "characters": (lambda: (examples, ForgetfulTokenizer(vocab_file)), features_one_by_one),
            "functions": (lambda: (examples, FullTokenizer(vocab_file)), features_by_question),
            "files": (lambda: (examples, FullTokenizer(vocab_file)), windows_of_file),
        }
    )
    windows = made["files"]
    batch = windows.batch(np.arange(len(windows)), _MAX_SEQ_LENGTH.value)
    for name in ("characters", "functions"):
        assert batch["input_ids"].tolist() == [feature.input_ids for feature in made[name]]
        assert batch["segment_ids"].tolist() == [feature.segment_ids for feature in made[name]]
    return row("featurise", seconds), windows, made["functions"]


def measure_decoding(examples, windows, features, peaks, folder):
    """From logits to written files."""
    tokenizer = FullTokenizer(_VOCAB_FILE.value)
    start_logits, end_logits = made_up_logits(windows, peaks)
    columns = windows.unique_ids.tolist(), start_logits.tolist(), end_logits.tolist()
    results = [squad.RawResult(*result) for result in zip(*columns, strict=True)]
    files = {
        name: [os.path.join(folder, f"{name}.{kind}.json") for kind in ("predictions", "nbest")]
        for name in ("characters", "functions", "files")
    }

    def by_question(name, way):
        with way:
            squad.write_predictions(examples, features, results, 20, 30, True, *files[name], "")

    def whole_file():
        predictions = squad.decode(examples, windows, start_logits, end_logits, tokenizer, rank_padding=True)
        predictions.write(*files["files"])

    seconds, _ = measure(
        {
            "characters": (lambda: ("characters", the_release_s_way()), by_question),
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
    with tempfile.TemporaryDirectory() as folder:
        rows = [features_row] + [
            measure_decoding(examples, windows, features, peaks, folder) for peaks in (False, True)
        ]
    print(f"{len(examples)} questions, {len(windows)} windows; CPU seconds, median of {_ROUNDS.value}")
    print(reporting.table(rows))


if __name__ == "__main__":
    app.run(main)
