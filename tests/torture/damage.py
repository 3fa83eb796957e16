"""Files of each format, how they are read, and damage to them."""

import json
import pathlib
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import safetensors.numpy

from bert_tf import checkpoints
from bert_tf.checkpoints import output_layers, run_directory, saver
from bert_tf.checkpoints.formats import CheckpointSource
from bert_tf.config import BertConfig
from bert_tf.pretraining import record_shards
from bert_tf.pretraining.record_reader import RecordReader
from bert_tf.sequences.example_format import Sidecar
from bert_tf.tasks import squad, tables
from bert_tf.tasks.squad.predictions import read_null_odds
from bert_tf.tasks.tagging import conll
from bert_tf.tokenization.tokenizer_config import read_tokenizer_config
from bert_tf.tokenization.vocabulary import check_vocab_file, vocabulary_text
from bert_tf.training.log import read_metrics
from tests.conftest import tiny_config
from tests.programs import LENGTH, PIECES, PREDICTIONS, write_pretraining_data

_HOSTILE = (
    b"\0" * 8,
    b"\xff\xfe",
    b"[" * 300,
    b"9" * 5000,
    b"NaN",
    b"1e999",
    b"\xed\xa0\x80",
    b"\n\n",
    b"null",
    b'"',
    b"{}",
)


def changed(data: bytes, rng: random.Random) -> bytes:
    """Damages a file in one of the ways in which disks, networks and editors do, often where its structure changes."""
    marks = [i for i, byte in enumerate(data) if byte in b'\n"{}[],:\t\0'] or [0]
    at = rng.choice(marks) if rng.random() < 0.5 else rng.randrange(len(data) + 1)
    end = min(len(data), at + rng.choice((1, 4, 64, 512)))
    kind = rng.randrange(8)
    if kind == 0:
        return data[:at]  # cut
    if kind == 1 and at < len(data):
        return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
    if kind == 2:
        return data[:at] + bytes(end - at) + data[end:]  # a block that was never written
    if kind == 3:
        return data[:at] + data[end:]
    if kind == 4:
        return data[:end] + data[at:]  # written twice
    if kind == 5:
        return data[:at] + rng.choice(_HOSTILE) + data[at:]
    if kind == 6:
        return data[:at] + rng.randbytes(end - at) + data[end:]
    return b"" if rng.random() < 0.3 else data + rng.choice(_HOSTILE)


def _write_checkpoints(folder: pathlib.Path) -> None:
    with saver.CheckpointSaver(str(folder), 0) as writer:
        for step in (1, 2):
            writer.save(step, {"x": np.arange(500, dtype=np.float32), "y": np.float32(step)})


def _read_newest(folder: pathlib.Path) -> Any:
    source = checkpoints.open_checkpoint(str(folder))
    assert source.read("y") in (1, 2)  # the newest one, or the newest whole one
    return source.read("x").tobytes()


def _write_records(folder: pathlib.Path) -> None:
    path = pathlib.Path(write_pretraining_data(folder / "x.tfrecord", records=5))
    Sidecar(5, path.stat().st_size, LENGTH, PREDICTIONS, "", {}).write(str(path))


def _read_records(folder: pathlib.Path) -> Any:
    path = str(folder / "x.tfrecord")
    (shard,) = record_shards.find_shards(path, LENGTH, PREDICTIONS, len(PIECES))
    record_shards.record_features([shard], LENGTH, PREDICTIONS)
    return RecordReader([path], [shard.records]).read(np.zeros(5, int), np.arange(5))


def _write_safetensors(folder: pathlib.Path) -> None:
    tensors = {"bert.pooler.dense.bias": np.arange(9, dtype=np.float32)}
    (folder / "model.safetensors").write_bytes(safetensors.numpy.save(tensors))


def _read_all(source: CheckpointSource) -> Any:
    return {name: source.read(name) for name in source.shapes}


def _text(name: str, text: str, read: Callable[[str], Any]) -> tuple:
    def write(folder: pathlib.Path) -> None:
        (folder / name).write_text(text)

    return write, lambda folder: read(str(folder / name)), False


def _cells(path: str) -> list:
    return [row.cells for row in tables.read_table(path, [] if path.endswith(".jsonl") else ["text"])]


def _beside(read: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda path: read(str(pathlib.Path(path).parent))


def _vocabulary(path: str) -> str:
    check_vocab_file(path)
    return vocabulary_text(path)


_QUESTIONS = {
    "data": [
        {
            "paragraphs": [
                {
                    "context": "One two three. Four five.",
                    "qas": [{"id": f"q{i}", "question": "What?", "answers": [{"text": "two", "answer_start": 4}]}],
                }
                for i in range(3)
            ]
        }
    ]
}
_RUN = {"flags": {}, "resume_settings": {"task": "custom", "labels": ["a", "b"], "max_seq_length": 8}, "devices": None}
_METRICS = "".join(json.dumps({"kind": "train", "step": step, "loss": 0.5}) + "\n" for step in range(5))

# How files are made in a folder, how they are read, and whether they have checksums, so that no damage goes unseen.
FORMATS: dict[str, tuple[Callable[[pathlib.Path], None], Callable[[pathlib.Path], Any], bool]] = {
    "checkpoints": (_write_checkpoints, _read_newest, True),
    "records": (_write_records, _read_records, False),  # the sidecar has no checksum
    "safetensors": (_write_safetensors, lambda folder: _read_all(checkpoints.open_checkpoint(str(folder))), False),
    "config": _text("bert_config.json", tiny_config().to_json_string(), BertConfig.from_json_file),
    "run": _text("run.json", json.dumps(_RUN), _beside(run_directory.recorded)),
    "labels": _text("labels.json", '["a", "b"]', _beside(run_directory.recorded_labels)),
    "metrics": _text("metrics.jsonl", _METRICS, _beside(read_metrics)),
    "vocabulary": _text("vocab.txt", "\n".join(PIECES), _vocabulary),
    "tokenizer": _text(
        "tokenizer.json",
        json.dumps({"model": {"type": "WordPiece", "vocab": {piece: i for i, piece in enumerate(PIECES)}}}),
        _vocabulary,
    ),
    "tokenizer settings": _text(
        "tokenizer_config.json", '{"do_lower_case": true, "strip_accents": null}', read_tokenizer_config
    ),
    "Hugging Face's config": _text(
        "config.json",
        '{"model_type": "bert", "id2label": {"0": "a", "1": "b"}, "architectures": ["BertModel"]}',
        lambda path: output_layers.recorded_classes(CheckpointSource(path, "hf", {}, lambda name: None)),
    ),
    "questions": _text("q.json", json.dumps(_QUESTIONS), lambda path: squad.read_squad(path, is_training=True)),
    "null odds": _text("odds.json", '{"q": -1.5, "r": 2}', read_null_odds),
    "tsv": _text("x.tsv", "text\tlabel\na b\tyes\nc d\tno\n", _cells),
    "csv": _text("x.csv", 'text,label\n"a, ""b""",yes\n', _cells),
    "jsonl": _text("x.jsonl", '{"text": "a", "n": [1, 2.5]}\n' * 3, _cells),
    "tags": _text("x.txt", "EU B-ORG\nrejects O\n\nPeter B-PER\n", lambda path: list(conll.read_sentences(path, True))),
}
