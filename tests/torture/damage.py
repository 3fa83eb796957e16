"""Damages files of each format. Readers must read the file or raise an error with an explanation."""

import json
import pathlib
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import safetensors.numpy

from bert_tf import checkpoints
from bert_tf.checkpoints import class_names, run_record, saver
from bert_tf.checkpoints.reading import CheckpointSource
from bert_tf.config import BertConfig
from bert_tf.pretraining import record_shards
from bert_tf.pretraining.record_reader import RecordReader
from bert_tf.runtime import errors
from bert_tf.sequences.example_format import Metadata
from bert_tf.tasks import squad, tables
from bert_tf.tasks.tagging import conll
from bert_tf.text.hf_tokenizer import read_tokenizer_config
from bert_tf.text.vocabulary import check_vocab_file
from bert_tf.training.log import read_metrics
from tests.conftest import tiny_config
from tests.programs import LENGTH, PIECES, PREDICTIONS, write_pretraining_data

_HOSTILE = (b"\0" * 8, b"\xff\xfe", b"[" * 300, b"9" * 5000, b"NaN", b"1e999", b"\xed\xa0\x80", b"\n\n", b'"', b"{}")


def changed(data: bytes, rng: random.Random) -> bytes:
    """Damages a file like disks, networks and editors; in half of the cases, at a structural character."""
    marks = [i for i, byte in enumerate(data) if byte in b'\n"{}[],:\t\0'] or [0]
    at = rng.choice(marks) if rng.random() < 0.5 else rng.randrange(len(data) + 1)
    end = min(len(data), at + rng.choice((1, 4, 64, 512)))
    middles = [b"", bytes(end - at), rng.randbytes(end - at), data[at:end] * 2, rng.choice(_HOSTILE) + data[at:end]]
    if 0 < at < len(data):
        middles.append(bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 : end])
    return data[:at] + rng.choice(middles) + (data[end:] if rng.random() < 0.8 else b"")


def _checkpoints(directory: pathlib.Path) -> None:
    with saver.CheckpointSaver(str(directory), 0) as writer:
        for step in (1, 2):
            writer.save(step, {"x": np.arange(500, dtype=np.float32), "y": np.float32(step)})


def _read_newest(directory: pathlib.Path) -> Any:
    source = checkpoints.open_checkpoint(str(directory))
    assert source.read("y") in (1, 2)  # the newest, or the newest complete one
    return source.read("x").tobytes()


def _records(directory: pathlib.Path) -> None:
    path = pathlib.Path(write_pretraining_data(directory / "x.tfrecord", records=5))
    Metadata(5, path.stat().st_size, LENGTH, PREDICTIONS, "", {}).write(Metadata.path_of(str(path)))


def _read_records(directory: pathlib.Path) -> Any:
    path = str(directory / "x.tfrecord")
    (shard,) = record_shards.find_shards(path, LENGTH, PREDICTIONS, len(PIECES))
    record_shards.record_features([shard])
    return RecordReader([path], [shard.records]).read(np.zeros(5, int), np.arange(5))


def _safetensors(directory: pathlib.Path) -> None:
    tensors = {"bert.embeddings.word_embeddings.weight": np.arange(9, dtype=np.float32).reshape(3, 3)}
    (directory / "model.safetensors").write_bytes(safetensors.numpy.save(tensors))


def _read_safetensors(directory: pathlib.Path) -> Any:
    source = checkpoints.open_checkpoint(str(directory))
    return {name: source.read(name) for name in source.shapes}


def _text(name: str, content: object, read: Callable[[str], Any]) -> tuple:
    text = content if isinstance(content, str) else json.dumps(content)
    return lambda directory: (directory / name).write_text(text), lambda directory: read(str(directory / name))


def _read_hf_config(path: str) -> Any:
    return class_names.recorded_classes(CheckpointSource(path, "hf", {}, lambda name: None))


def _in_directory(read: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda path: read(str(pathlib.Path(path).parent))


_QUESTION = {"id": "q", "question": "What?", "answers": [{"text": "two", "answer_start": 4}]}
_SQUAD = {"data": [{"paragraphs": [{"context": "One two three. Four five.", "qas": [_QUESTION]}]}]}
_RUN = {"flags": {}, "resume_settings": {"task": "text", "labels": ["a", "b"], "max_seq_length": 8}, "devices": None}
_METRICS = "".join(json.dumps({"kind": "train", "step": step, "loss": 0.5}) + "\n" for step in range(5))
_TOKENIZER = {"model": {"type": "WordPiece", "vocab": {piece: i for i, piece in enumerate(PIECES)}}}
_HF_CONFIG = {"model_type": "bert", "id2label": {"0": "a", "1": "b"}, "architectures": ["BertModel"]}

# Format -> the functions that write its files into a directory and read them.
FORMATS: dict[str, tuple[Callable[[pathlib.Path], object], Callable[[pathlib.Path], Any]]] = {
    "checkpoints": (_checkpoints, _read_newest),
    "records": (_records, _read_records),
    "safetensors": (_safetensors, _read_safetensors),
    "config": _text("bert_config.json", tiny_config().to_json_string(), BertConfig.from_json_file),
    "run": _text("run.json", _RUN, _in_directory(run_record.recorded)),
    "metrics": _text("metrics.jsonl", _METRICS, _in_directory(read_metrics)),
    "vocabulary": _text("vocab.txt", "\n".join(PIECES), check_vocab_file),
    "tokenizer": _text("tokenizer.json", _TOKENIZER, check_vocab_file),
    "tokenizer settings": _text("tokenizer_config.json", {"do_lower_case": True}, read_tokenizer_config),
    "Hugging Face's config": _text("config.json", _HF_CONFIG, _read_hf_config),
    "questions": _text("q.json", _SQUAD, lambda path: squad.read_squad(path, is_training=True)),
    "tsv": _text("x.tsv", "text\tlabel\na b\tyes\nc d\tno\n", lambda path: tables.read_table(path, [])),
    "csv": _text("x.csv", 'text,label\n"a, ""b""",yes\n', lambda path: tables.read_table(path, [])),
    "jsonl": _text("x.jsonl", '{"text": "a", "n": [1, 2.5]}\n' * 3, lambda path: tables.read_table(path, [])),
    "tags": _text("x.txt", "EU B-ORG\nrejects O\n\nPeter B-PER\n", lambda path: list(conll.read_sentences(path, True))),
}


def trial(directory: str, rng: random.Random, number: int, counts: Counter) -> None:
    """Reads damaged files of one format. Checkpoints have checksums, so all damage must be detected."""
    name = list(FORMATS)[number % len(FORMATS)]
    write, read = FORMATS[name]
    write(pathlib.Path(directory))
    original = repr(read(pathlib.Path(directory)))
    targets = sorted(path for path in pathlib.Path(directory).rglob("*") if path.is_file())
    for _ in range(120):
        target = rng.choice(targets)
        before = target.read_bytes()
        target.write_bytes(changed(before, rng))
        try:
            found = repr(read(pathlib.Path(directory)))
            assert name != "checkpoints" or found == original, f"damage to {target} was missed"
        except Exception as error:
            if errors.explanation(error) is None:
                raise AssertionError(f"{name}: {target.name} {target.read_bytes()[:300]!r}") from error
        target.write_bytes(before)
        counts["damaged inputs"] += 1
