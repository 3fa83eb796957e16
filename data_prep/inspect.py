"""Shows the content of TFRecord files of pre-training examples: some examples as text, and statistics of all.

    python -m data_prep.inspect FILE [--vocab_file=vocab.txt] [--num_examples=5] [--html_file=set.html]

FILE is a name, a glob, or several names separated by commas; more than one may be given. Files of the original program
work too. Tokens to be predicted are in braces: {cat -> [MASK]}, {cat -> dog}, or {cat} if the token stays the same.
--html_file draws the statistics on a page, with examples from everywhere in the set.
"""

import heapq
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from absl import flags
from google.protobuf.message import DecodeError

from bert_tf.runtime import files, program, reporting
from bert_tf.runtime.files import InputError
from bert_tf.sequences.example_format import (
    NOT_RECORDS,
    Feature,
    Sidecar,
    names,
    parse,
    pretraining_features,
    record_offsets,
    unmasked_features,
    vocabulary_hash,
)
from bert_tf.sequences.masking import MaskingVocabulary
from bert_tf.tokenization.vocabulary import CONTINUATION, UNK, load_vocab
from data_prep.examples import set_page
from data_prep.examples.set_statistics import SetStatistics

if TYPE_CHECKING:
    import tensorflow as tf

_VOCAB_FILE = flags.DEFINE_string(
    "vocab_file", None, "The vocabulary of the examples; the default is the vocab.txt beside FILE."
)
_NUM_EXAMPLES = flags.DEFINE_integer("num_examples", 5, "Number of examples to show; the statistics are of all.")
_HTML_FILE = flags.DEFINE_string("html_file", None, "Also write a page with histograms and sampled examples here.")

_BATCH = 1024
_FILE = "FILE"

Batch = dict[str, np.ndarray]


def main(*patterns: str) -> None:
    """Shows the files that the arguments name."""
    if not patterns:
        raise InputError("FILE is needed: python -m data_prep.inspect FILE [--vocab_file=vocab.txt]")
    paths = [p for p in files.expand_patterns(list(patterns), _FILE) if not p.endswith(NOT_RECORDS)]
    if not paths:
        raise InputError(
            f"FILE is {' '.join(patterns)}, but sidecars hold no examples. Name the files that they describe."
        )
    if _HTML_FILE.value:
        files.check_output_files([_HTML_FILE.value], "--html_file", {"FILE": paths})
    show(paths, _VOCAB_FILE.value or vocab_file_beside(paths[0]), _NUM_EXAMPLES.value, _HTML_FILE.value)


def vocab_file_beside(path: str) -> str:
    """Returns the vocab.txt in a file's folder.

    Raises:
      InputError: if there is none.
    """
    beside = os.path.join(os.path.dirname(path), "vocab.txt")
    if not files.exists(beside):
        raise InputError(f"--vocab_file is not given, and there is no vocab.txt beside {path}. Give one of them.")
    return beside


def show(paths: Sequence[str], vocab_file: str, num_examples: int, html_file: str | None = None) -> None:
    """Prints examples, then statistics, and draws them.

    Args:
      paths: TFRecord files.
      vocab_file: the vocabulary of the examples.
      num_examples: number of examples to print, and of examples on the page.
      html_file: the page to write; None for none.

    Raises:
      InputError: if a file can't be read, differs from its sidecar, or was made with another vocabulary, or if all
        files are empty.
    """
    vocab = load_vocab(files.require_file(vocab_file, "--vocab_file"))
    pieces = {index: piece for piece, index in vocab.items()}
    statistics = SetStatistics(MaskingVocabulary.of(vocab), vocab.get(UNK))
    sample = _Sample(num_examples)
    records = []
    left = num_examples
    for path in paths:
        _check_sidecar(path, vocab_file)
        number = 0
        for batch in read_batches(path, len(pieces)):
            for row in range(min(len(batch["input_ids"]), left)):
                example = {name: values[row] for name, values in batch.items()}
                print(f"{path}, example {number + row + 1}: {describe(example, pieces)}\n")
                left -= 1
            number += len(batch["input_ids"])
            statistics.add(batch)
            sample.add(batch, path, number)
        records.append((path, number))
    if not any(number for _, number in records):
        raise InputError(f"{_FILE}: {', '.join(paths)} holds no examples: every file is empty. Make the data again.")
    if html_file:
        tables = {
            "Statistics": [(row["statistics"], row["value"]) for row in statistics.rows()],
            "Files": [(path, f"{number} examples") for path, number in records],
            "Made with": _settings(paths[0]),
        }
        text = set_page.page(os.path.basename(paths[0]), tables, statistics.figures(), sample.examples(), pieces)
        with files.replacing(html_file) as writer:
            writer.write(text)
    print(f"{len(paths)} file{'s' * (len(paths) > 1)}:\n{reporting.table(statistics.rows())}")


class _Sample:
    """Examples from everywhere in a set, the same ones each time.

    Args:
      count: their number.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._rng = np.random.default_rng(0)
        self._chosen: list[tuple[float, set_page.SampledExample]] = []

    def add(self, batch: Batch, path: str, end: int) -> None:
        """Adds a batch that ends behind the example number `end` of a file."""
        draws = self._rng.random(len(batch["input_ids"]))
        for row in np.argsort(draws)[: self._count]:
            number = end - len(draws) + int(row) + 1
            example = {name: values[row] for name, values in batch.items()}
            sampled = set_page.SampledExample(f"{os.path.basename(path)}, example {number}", example)
            self._chosen.append((draws[row], sampled))
        self._chosen = heapq.nsmallest(self._count, self._chosen, key=lambda chosen: chosen[0])

    def examples(self) -> list[set_page.SampledExample]:
        """Returns the examples."""
        return [sampled for _, sampled in self._chosen]


def _settings(path: str) -> list[tuple[str, object]]:
    """Returns the settings of a file's sidecar, as rows."""
    sidecar = Sidecar.read(path, _FILE)
    if sidecar is None:
        return []
    return [(n, v if isinstance(v, str) else json.dumps(v, ensure_ascii=False)) for n, v in sidecar.settings.items()]


def read_batches(path: str, vocab_size: int) -> Iterator[Batch]:
    """Yields the examples of a file in batches of arrays [B, length] or [B]; none if the file is empty.

    Raises:
      InputError: if it isn't a file of pre-training examples, or contains ids outside the vocabulary.
    """
    import tensorflow as tf

    # TensorFlow believes any length, and may end the process.
    offsets = record_offsets(files.require_file(path, _FILE, may_be_empty=True), _FILE)
    if len(offsets) == 1:
        return
    records = tf.data.TFRecordDataset(path)
    try:
        first = next(iter(records)).numpy()
        features = features_of(tf.train.Example.FromString(first).features.feature)
        for serialized in records.batch(_BATCH):
            batch = {name: x.numpy() for name, x in parse(features, serialized).items()}
            _check_ids(batch, vocab_size, path)
            yield batch
    except (tf.errors.OpError, DecodeError) as error:
        raise InputError(f"{_FILE}: {path} is not a TFRecord file of pre-training examples ({error}).") from None


def features_of(found: "Mapping[str, tf.train.Feature]") -> tuple[Feature, ...]:
    """Returns the features of a file's records, from those of its first record.

    Raises:
      InputError: if the first record is no pre-training example.
    """
    length = len(found["input_ids"].int64_list.value) if "input_ids" in found else 0
    if "masked_lm_ids" in found:
        features = pretraining_features(length, len(found["masked_lm_ids"].int64_list.value))
    else:
        features = unmasked_features(length, "word_starts" in found)
    if set(found) != set(names(features)):
        raise InputError(
            f"{_FILE}: the first record holds {', '.join(sorted(found)) or 'nothing'}, but pre-training examples hold "
            f"{', '.join(names(features))}."
        )
    return features


def _check_ids(batch: Batch, vocab_size: int, path: str) -> None:
    largest = max(batch[name].max() for name in ("input_ids", "masked_lm_ids") if name in batch)
    if largest >= vocab_size:
        raise InputError(
            f"--vocab_file has {vocab_size} pieces, but {path} holds the id {largest}. Give the vocabulary with which "
            "the examples were made."
        )


def _check_sidecar(path: str, vocab_file: str) -> None:
    """Raises an InputError if a file differs from its sidecar; a file without one is accepted."""
    sidecar = Sidecar.read(path, _FILE)
    if sidecar is None:
        return
    if files.size(path) != sidecar.file_size:
        raise InputError(
            f"{path} has {files.size(path)} bytes, but {sidecar.file_size} by its sidecar. It was cut short or "
            "changed; make it again."
        )
    if sidecar.vocab_sha256 != vocabulary_hash(vocab_file):
        raise InputError(
            f"{path} was made with another vocabulary than --vocab_file={vocab_file}. Give the vocabulary that made it."
        )


def describe(example: Batch, pieces: dict[int, str]) -> str:
    """Describes an example as text, with its labels.

    Args:
      example: the features of one example.
      pieces: id -> piece.
    """
    length = int(example["input_mask"].sum())
    texts = [[], []]
    labels = set_page.labels_of(example)
    for place, (index, segment) in enumerate(zip(example["input_ids"], example["segment_ids"], strict=True)):
        if place < length:
            label = labels.get(place)
            texts[segment].append(_marked(pieces[index], None if label is None else pieces[label]))
    heading = f"{length} tokens"
    if labels:
        heading += f", {len(labels)} of them to be predicted"
    next_sentence = set_page.NEXT_SENTENCES[bool(example["next_sentence_labels"])]
    return f"{heading}; {next_sentence}\n  A: {_joined(texts[0])}\n  B: {_joined(texts[1])}"


def _marked(piece: str, label: str | None) -> str:
    if label is None:
        return piece
    marked = f"{{{label}}}" if label == piece else f"{{{label} -> {piece}}}"
    # A piece that continues a word keeps its prefix.
    return f"{CONTINUATION}{marked}" if label.startswith(CONTINUATION) else marked


def _joined(pieces: Sequence[str]) -> str:
    """Joins pieces to text; "##" pieces are attached to the word that they continue."""
    joined = "".join(
        piece.removeprefix(CONTINUATION) if piece.startswith(CONTINUATION) else f" {piece}" for piece in pieces[1:]
    )
    return "".join(pieces[:1]) + joined


def cli() -> None:
    """Runs this module as a command."""
    program.run(main, takes_names=True)


if __name__ == "__main__":
    cli()
