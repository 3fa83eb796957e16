"""Checks properties of tokenizers and tables on examples from hypothesis."""

import functools
import os
import pathlib
import random
import tempfile
from collections import Counter

import hypothesis
from hypothesis import strategies as st

from bert_tf.graphs.tokenization import GraphTokenizer
from bert_tf.tasks import tables
from bert_tf.text import FullTokenizer
from bert_tf.text.vocabulary import SPECIAL_TOKENS
from tests.graphs.test_modes import TRAPS, assert_same

_PIECES = [*SPECIAL_TOKENS, *"abcdeéßσ天地.,!'", *(f"##{x}" for x in "abcdeσ"), "ab", "##cd", "天地", "ΐ", "i̇"]
# Characters with special rules: controls, marks, spaces, ideographs, joiners, and letters whose length depends on case.
_SPECIAL = "abcde .,!'\t\n\0\u00ad\u0130\u0345\u200b\u200d\u202f\u3000\u0307\uac01\ufffd\ufeff天地Σσςßŉΐǰﬁ\U0001f600"
_CHARACTERS = st.sampled_from(_SPECIAL) | st.characters(exclude_categories=["Cs"])
_TEXTS = st.text(_CHARACTERS, max_size=12) | st.sampled_from([trap for trap in TRAPS if isinstance(trap, str)])


@functools.cache
def _tokenizer(do_lower_case: bool) -> FullTokenizer:
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "vocab.txt"
        path.write_text("\n".join(_PIECES) + "\n", encoding="utf-8")
        return FullTokenizer(str(path), do_lower_case)


@functools.cache
def _graph_tokenizer(do_lower_case: bool) -> GraphTokenizer:
    return GraphTokenizer.of(_tokenizer(do_lower_case), ())


def tokenization(texts: list[str], rng: random.Random) -> None:
    """The tokenizers in Python and in the graph give the same tokens and spans, also for damaged UTF-8."""
    raw = [text.encode() for text in texts]
    raw += [data[: rng.randrange(len(data))] + b"\xff" * rng.randrange(2) for data in raw if data]
    raw += [b"".join(rng.choices(raw, k=rng.randint(2, 4))) for _ in range(10 * len(raw))]
    for do_lower_case in (False, True):
        assert_same(_tokenizer(do_lower_case), _graph_tokenizer(do_lower_case), raw)


def table(rows: list[tuple[str, str]], rng: random.Random) -> None:
    """A table written as JSON lines or CSV is read unchanged. In TSV, tabs and line ends become spaces."""
    with tempfile.TemporaryDirectory() as directory:
        for suffix in (".jsonl", ".csv", ".tsv"):
            path = os.path.join(directory, f"x{suffix}")
            written = [{"text": f"x{a}".replace("\r", ""), "other": f"x{b}".replace("\r", "")} for a, b in rows]
            tables.write_table(path, written)
            found = [(*row.cells,) for row in tables.read_table(path, [] if suffix == ".jsonl" else ["text", "other"])]
            spaces = str.maketrans("\t\n", "  ") if suffix == ".tsv" else {}
            assert found == [tuple(value.translate(spaces) for value in row.values()) for row in written], suffix


PROPERTIES = {
    tokenization: st.lists(_TEXTS, min_size=1, max_size=40),
    table: st.lists(st.tuples(_TEXTS, _TEXTS), min_size=1, max_size=9),
}


def trial(directory: str, rng: random.Random, number: int, counts: Counter) -> None:
    """Examines one property. A failing example is reduced as far as possible."""
    examine([*PROPERTIES][number % len(PROPERTIES)], rng, counts)


def examine(has_property, rng: random.Random, counts: Counter) -> None:
    """Searches with hypothesis for examples that violate a property."""
    seed = rng.randrange(1 << 30)

    def check(examples: list) -> None:
        has_property(examples, random.Random(seed))
        counts[f"examples of {has_property.__name__}"] += len(examples)

    checks = list(hypothesis.HealthCheck)
    settings = hypothesis.settings(max_examples=25, database=None, deadline=None, suppress_health_check=checks)
    hypothesis.seed(seed)(settings(hypothesis.given(PROPERTIES[has_property])(check)))()
