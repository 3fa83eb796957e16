"""A run is one command, such as a training run or data preparation. Its name is a hash of its settings."""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from bert_tf.runtime import files
from bert_tf.runtime.files import InputError

THIS = "{this}"  # placeholder for the directory of the run, in the value of a flag


class File(NamedTuple):
    """A flag value that is a file, a directory or a glob pattern."""

    identity: str  # the value in the run's settings
    path: str  # the value in the command
    run: "Run | None" = None  # the run that writes it
    fetch: str = ""  # for the user's files: the data to fetch if the file is missing


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """One command. Its flags are values, `File`s, or lists of both."""

    kind: str  # vocabulary, data, pretraining, finetuning or ensemble
    module: str  # the program
    flags: Mapping[str, Any]
    model: Mapping[str, Any] | None = None  # the model config to write for the program
    used_for: str = ""  # a cell of a table that needs this run; other cells may need it too

    @functools.cached_property
    def settings(self) -> dict[str, Any]:
        """Everything that determines the result."""
        flags = {name: [getattr(x, "identity", x) for x in values] for name, values in self.values.items()}
        flags = {name: values if isinstance(self.flags[name], list) else values[0] for name, values in flags.items()}
        return {"kind": self.kind, "program": self.module, "flags": flags, "model": self.model and dict(self.model)}

    @functools.cached_property
    def name(self) -> str:
        """The name of the run's directory. Runs with the same settings have the same name."""
        text = json.dumps(self.settings, sort_keys=True)
        return f"{self.kind}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def __str__(self) -> str:
        return f"{self.name} ({self.used_for})" if self.used_for else self.name

    @property
    def values(self) -> dict[str, list[Any]]:
        """The values of each flag."""
        return {name: value if isinstance(value, list) else [value] for name, value in self.flags.items()}

    @property
    def files(self) -> list[File]:
        """The files in all flags."""
        return [value for values in self.values.values() for value in values if isinstance(value, File)]

    @property
    def texts(self) -> dict[str, str]:
        """The values of the flags in the command, by the names of the flags."""
        return {name: ",".join(str(getattr(x, "path", x)) for x in values) for name, values in self.values.items()}

    @property
    def arguments(self) -> list[str]:
        """The arguments of the command."""
        return [f"--{name}={text}" for name, text in self.texts.items()]


def in_order(runs: Iterable[Run]) -> list[Run]:
    """Returns the runs and all runs that they need, each once, in execution order."""
    needed = ((run, [file.run for file in run.files if file.run]) for run in runs)
    return list({item.name: item for run, needs in needed for item in (*in_order(needs), run)}.values())


def check_data(runs: Iterable[Run]) -> None:
    """Checks that the user's files exist.

    Raises:
      InputError: if files are missing. The message lists them and the data to fetch.
    """
    sources = {f"  {x.path}: {x.fetch}": x.path for run in in_order(runs) for x in run.files if x.fetch}
    if missing := [text for text, path in sources.items() if not files.find(path)]:
        raise InputError("\n".join(["--data_dir: files are missing. Download them:", *missing]))
