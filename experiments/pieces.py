"""A piece is one command: a vocabulary, records, a pre-training or fine-tuning run. A hash of its settings names it."""

import dataclasses
import functools
import glob
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bert_tf.runtime import differences
from bert_tf.runtime.files import InputError


@dataclasses.dataclass(frozen=True)
class Source:
    """A file, a folder or a glob that the user has; `name` does not say where the user's folders are."""

    path: str
    name: str
    fetch: str = ""  # what to fetch if it is missing

    @functools.cached_property
    def identity(self) -> str:
        """The name, with a hash of what the files hold."""
        return f"{self.name} ({differences.fingerprint(self.path)})"


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
    used_for: str = ""  # a place in a table that needs it, for readers; others may need it too

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

    def __str__(self) -> str:
        return f"{self.name} ({self.used_for})" if self.used_for else self.name

    @property
    def parts(self) -> list[Any]:
        """All values, also those in lists."""
        return [part for value in self.flags.values() for part in (value if isinstance(value, list) else [value])]

    @property
    def needs(self) -> list["Piece"]:
        """The pieces whose outputs this one reads."""
        return [part.piece for part in self.parts if isinstance(part, Output) and part.piece]

    def all_settings(self) -> dict[str, Any]:
        """The settings of this piece, behind those of the pieces it needs, `kind.flag` -> value."""
        settings = [(piece.kind, piece.settings["flags"] | (piece.model or {})) for piece in in_order([self])]
        return {f"{kind}.{name}": value for kind, of_piece in settings for name, value in of_piece.items()}

    def shown(self, value: Any, pieces_dir: str) -> str:
        """A value as the program gets it; `pieces_dir` holds a folder for each piece."""
        if isinstance(value, list):
            return ",".join(self.shown(part, pieces_dir) for part in value)
        if isinstance(value, Output):
            return os.path.join(pieces_dir, (value.piece or self).name, value.name + value.file)
        return value.path if isinstance(value, Source) else str(value)

    def command(self, pieces_dir: str) -> list[str]:
        """The module and its arguments."""
        return [self.module, *(f"--{name}={self.shown(value, pieces_dir)}" for name, value in self.flags.items())]


def in_order(pieces: Iterable[Piece]) -> list[Piece]:
    """The pieces and those they need, each once and behind those it needs."""
    return list({each.name: each for piece in pieces for each in (*in_order(piece.needs), piece)}.values())


def check_data(pieces: Sequence[Piece]) -> None:
    """Checks that what the user has to give is there.

    Raises:
      InputError: names each file that is missing, and what to fetch.
    """
    given = [part for piece in in_order(pieces) for part in piece.parts]
    if missing := {f"  {x.path}: {x.fetch}": x for x in given if isinstance(x, Source) and not glob.glob(x.path)}:
        raise InputError("\n".join(["This scale needs data that are not there. Fetch and put here:", *missing]))


def _identity(value: Any) -> Any:
    if isinstance(value, list):
        return [_identity(part) for part in value]
    if isinstance(value, Output):
        return f"{value.piece.name if value.piece else 'this'}/{value.name}"
    return value.identity if isinstance(value, Source) else value
