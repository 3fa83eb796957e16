"""A piece is one command: a vocabulary, records, a pre-training or fine-tuning run. A hash of its settings names it."""

import dataclasses
import functools
import glob
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bert_tf.runtime import files
from bert_tf.runtime.files import InputError

_FINGERPRINT_BYTES = 1 << 24  # files are compared by their names, sizes and so many of their first bytes


@dataclasses.dataclass(frozen=True)
class Source:
    """A file, a folder or a glob that the user has; `name` does not say where the user's folders are."""

    path: str
    name: str
    fetch: str = ""  # what to fetch if it is missing

    @functools.cached_property
    def identity(self) -> str:
        """The name, with a hash of what the files hold."""
        digest = hashlib.sha256()
        for path in sorted(glob.glob(self.path)):
            inside = sorted(glob.glob(os.path.join(path, "*"))) if os.path.isdir(path) else [path]
            for name in filter(os.path.isfile, inside):
                with files.open_file(name, "rb") as reader:
                    start = reader.read(_FINGERPRINT_BYTES)
                digest.update(f"{os.path.basename(name)} {files.size(name)} ".encode() + hashlib.sha256(start).digest())
        return f"{self.name} ({digest.hexdigest()[:12]})"


@dataclasses.dataclass(frozen=True)
class Output:
    """A file or a folder that a piece makes; without a piece, the one whose flag this is."""

    name: str
    piece: "Piece | None" = None
    file: str = ""  # in the folder `name`; no setting of the reader's, because the piece's own determine it


@dataclasses.dataclass(frozen=True, eq=False)
class Piece:
    """One command. Its flags are values, `Source`, `Output`, or lists of them."""

    kind: str  # vocabulary, data, pretraining, finetuning or ensemble
    module: str  # the program
    flags: Mapping[str, Any]
    work: float  # bytes of text, or operations of training
    disk: float  # the bytes that it leaves
    model: Mapping[str, Any] | None = None  # the config that is written for the program, if any

    @functools.cached_property
    def settings(self) -> dict[str, Any]:
        """All that determines the result."""
        flags = {name: _identity(value) for name, value in self.flags.items()}
        return {"kind": self.kind, "program": self.module, "flags": flags, "model": self.model and dict(self.model)}

    @functools.cached_property
    def name(self) -> str:
        """The name of the piece's folder. Pieces with the same settings have the same name."""
        text = json.dumps(self.settings, sort_keys=True)
        return f"{self.kind}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    @property
    def needs(self) -> Iterator["Piece"]:
        """The pieces whose outputs this one reads."""
        for value in self.flags.values():
            yield from (part.piece for part in _parts(value) if isinstance(part, Output) and part.piece)

    def all_settings(self) -> dict[str, Any]:
        """The settings of this piece, behind those of the pieces it needs, `kind.flag` -> value."""
        settings = [(piece.kind, piece.settings["flags"] | (piece.model or {})) for piece in in_order([self])]
        return {f"{kind}.{name}": value for kind, of_piece in settings for name, value in of_piece.items()}

    def shown(self, name: str, pieces_dir: str) -> str:
        """A flag's value as the program gets it; `pieces_dir` holds a folder for each piece."""

        def text(part: Any) -> str:
            if isinstance(part, Output):
                return os.path.join(pieces_dir, (part.piece or self).name, part.name + part.file)
            return part.path if isinstance(part, Source) else str(part)

        return ",".join(map(text, _parts(self.flags[name])))

    def command(self, pieces_dir: str) -> list[str]:
        """The module and its arguments."""
        return [self.module, *(f"--{name}={self.shown(name, pieces_dir)}" for name in self.flags)]


def in_order(pieces: Iterable[Piece]) -> list[Piece]:
    """The pieces and those they need, each once and behind those it needs."""
    return list({each.name: each for piece in pieces for each in (*in_order(piece.needs), piece)}.values())


def check_data(pieces: Sequence[Piece]) -> None:
    """Checks that what the user has to give is there.

    Raises:
      InputError: names each file that is missing, and what to fetch.
    """
    given = [part for piece in in_order(pieces) for value in piece.flags.values() for part in _parts(value)]
    if missing := {x.path: x.fetch for x in given if isinstance(x, Source) and not glob.glob(x.path)}:
        lines = [f"  {path}: {fetch}" for path, fetch in missing.items()]
        raise InputError("\n".join(["This scale needs data that are not there. Fetch and put here:", *lines]))


def _identity(value: Any) -> Any:
    if isinstance(value, list):
        return [_identity(part) for part in value]
    if isinstance(value, Output):
        return f"{value.piece.name if value.piece else 'this'}/{value.name}"
    return value.identity if isinstance(value, Source) else value


def _parts(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
