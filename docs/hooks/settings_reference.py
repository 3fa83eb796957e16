"""MkDocs hook: writes tables of keyword arguments in place of comments such as `<!-- settings: Classifier -->`.

A table lists the settings that are flags of the programs, with the names of the Python arguments.
"""

import functools
import re
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

_COMMENT = re.compile(r"^<!-- settings: ([\w.]+) -->$", re.MULTILINE)
_BOUNDS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}


@functools.cache
def _tables() -> dict[str, Mapping[str, Any]]:
    """Returns the settings for each table name."""
    sys.path.insert(0, ".")
    import bert_tf
    from bert_tf.api.arguments import accepted_flags
    from bert_tf.finetuning.finetuning_config import FinetuningConfig
    from bert_tf.pretraining.pretraining_config import PretrainingConfig
    from bert_tf.runtime.settings import FIT, MODEL, flags_of
    from bert_tf.serving.export_config import ExportConfig

    def parts(name: str, config: type) -> dict[str, Any]:
        of_model, of_fit = accepted_flags(config, MODEL), accepted_flags(config, FIT)
        return {
            f"{name}.model": {flag: field for flag, field in of_model.items() if flag not in of_fit},
            f"{name}.fit": of_fit,
        }

    own = ("Classifier", "Regressor", "TokenClassifier", "QuestionAnswerer")
    return {
        **{name: flags_of(getattr(bert_tf, name)._OPTIONS) for name in own},
        **parts("Estimator", FinetuningConfig),
        **parts("Pretrainer", PretrainingConfig),
        "ExportConfig": flags_of(ExportConfig),
    }


def table(name: str) -> str:
    """Returns a table in Markdown."""
    from bert_tf.api import arguments

    rows = ["| Argument | Type | Default | Meaning |", "|---|---|---|---|"]
    for field in _tables()[name].values():
        argument = arguments.NAMES_IN_KERAS.get(field.name, field.name)
        meaning = arguments.as_arguments(field.help)
        cells = (f"`{argument}`{{ .flag }}", " or ".join(_types(field.type)), _shown(field.default), meaning)
        rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(rows) + "\n"


def _types(kind: Any, bounds: str = "") -> Iterator[str]:
    """Yields the names of the types in a union, with their bounds."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        limits = [
            f"{sign} {limit:g}"
            for meta in parts[1:]
            if isinstance(meta, Meta)
            for name, sign in _BOUNDS.items()
            if (limit := getattr(meta, name)) not in (None, sys.float_info.max)
        ]
        yield from _types(parts[0], " ".join(["", *limits]) or bounds)
    elif origin in (typing.Union, types.UnionType):
        for part in parts:
            yield from _types(part)
    elif origin is Literal:
        yield from (f"`{value!r}`".replace("'", '"') for value in parts)
    elif origin is tuple:
        yield f"list of {' or '.join(_types(parts[0]))}"
    elif kind is types.NoneType:
        yield "None"
    else:
        yield (origin or kind).__name__ + bounds


def _shown(default: Any) -> str:
    if default is msgspec.NODEFAULT or default in (None, "", ()):
        return ""
    return f"`{list(default)}`" if isinstance(default, tuple) else f"`{default!r}`".replace("'", '"')


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replaces the comments of a page."""
    return _COMMENT.sub(lambda comment: table(comment[1]), markdown)
