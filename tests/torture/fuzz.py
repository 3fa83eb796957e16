"""Properties of tokenizers, tables, windows, decoding and masking, on examples that hypothesis makes."""

import json
import os
import random
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import hypothesis
import numpy as np
import tensorflow as tf
from hypothesis import strategies as st

from bert_tf.runtime import json_files
from bert_tf.runtime.files import InputError
from bert_tf.sequences import packing
from bert_tf.sequences.masking import MaskingPolicy, MaskingVocabulary, mask_batch
from bert_tf.sequences.random_streams import make_keys
from bert_tf.tasks import squad, tables
from bert_tf.tokenization import FullTokenizer
from bert_tf.tokenization.graph_tokenization import GraphTokenizer
from bert_tf.tokenization.vocabulary import SPECIAL_TOKENS
from tests.sequences.test_masking_modes import FIRST, VOCAB, mask_tensors
from tests.tokenization.test_modes import TRAPS, assert_same

_PIECES = [*SPECIAL_TOKENS, *"abcdeéßσ天地.,!'", *(f"##{x}" for x in "abcdeσ"), "ab", "##cd", "天地", "ΐ", "i̇"]
# Characters whose rules differ: controls, marks, spaces, ideographs, surrogate-like, joiners, cases that change length.
_CHARACTERS = st.one_of(
    st.sampled_from(
        "abcde .,!'\t\n\0\u00ad\u0130\u0345\u200b\u200d\u202f\u3000\u0307\uac01\ufffd\ufeff天地Σσςßŉΐǰﬁ\U0001f600"
    ),
    st.characters(blacklist_categories=["Cs"]),
)
_TEXTS = st.text(_CHARACTERS, max_size=12) | st.sampled_from([trap for trap in TRAPS if isinstance(trap, str)])
_SMALL = st.integers(0, 40)


class Tools(NamedTuple):
    folder: str
    tokenizer: FullTokenizer
    graph: GraphTokenizer
    rng: random.Random
    counts: Counter


def tokenization(tools: Tools, texts: list[str]) -> None:
    """Python's tokenizer and the graph's give the same pieces and spans, of damaged UTF-8 too."""
    raw = [text.encode() for text in texts]
    raw += [data[: tools.rng.randrange(len(data))] + b"\xff" * tools.rng.randrange(2) for data in raw if data]
    assert_same(tools.tokenizer, tools.graph, raw)
    # Each text also as a part of others, which costs hypothesis nothing.
    joined = [b"".join(tools.rng.choices(raw, k=tools.rng.randint(2, 4))) for _ in range(60 * len(raw))]
    found = tools.graph.tokenize(tf.constant(joined)).to_list()
    for text, ids in zip(joined, found, strict=True):
        assert ids == tools.tokenizer.encode(text.decode("utf-8", "ignore")), text
    tools.counts["strings"] += len(raw) + len(joined)


def table(tools: Tools, rows: list[tuple[str, str]]) -> None:
    """What is written as JSON lines or CSV is read again, and TSV without the white space that it can't have."""
    rows = [(text.replace("\r", ""), other.replace("\r", "")) for text, other in rows]
    for suffix in (".jsonl", ".csv", ".tsv"):
        path = os.path.join(tools.folder, f"x{suffix}")
        written = [{"text": f"x{text}", "other": f"x{other}"} for text, other in rows]
        tables.write_table(path, written)
        found = [tuple(row.cells) for row in tables.read_table(path, ["text", "other"] if suffix != ".jsonl" else [])]
        spaces = str.maketrans("\t\n", "  ") if suffix == ".tsv" else {}
        assert found == [tuple(value.translate(spaces) for value in row.values()) for row in written], suffix
    tools.counts["tables"] += 3


def json_text(tools: Tools, texts: list[str]) -> None:
    """Any text is parsed, or refused with a message; what is parsed can be written again."""
    for text in texts:
        for candidate in (text, json.dumps({text: [text, None, -1.5]}), f'{{"a": {text}}}'):
            try:
                value = json_files.parse(candidate)
            except InputError:
                continue
            assert json_files.parse(json.dumps(value)) == value
    tools.counts["strings"] += 3 * len(texts)


def packed(tools: Tools, lengths: list[tuple[int, int, int]]) -> None:
    """Two segments fit into a sequence, keep their beginnings, and lose no more than they must."""
    for length_a, length_b, room in lengths:
        limit = room + 4
        a, b = packing.fit_segments(list(range(length_a)), list(range(length_b)), limit)
        used = len(a) + len(b) + 2 + bool(length_b)
        assert used <= limit and a == list(range(len(a))) and b == list(range(len(b)))
        assert used == limit or (len(a), len(b)) == (length_a, length_b)
    tools.counts["sequences"] += len(lengths)


def windows(tools: Tools, texts: list[str]) -> None:
    """The windows of a context hold each of its pieces, and an answer by offsets is a part of the context."""
    config = squad.SquadConfig(16, 4, 5, answer_text="offsets", n_best_size=3)
    contexts = [f"a {text} b" for text in texts]
    examples = [squad.make_example(str(i), "c d", context) for i, context in enumerate(contexts)]
    made = squad.featurize(examples, tools.tokenizer, config, is_training=False)
    logits = [np.random.default_rng(tools.rng.randrange(99)).normal(size=[len(made), 16]) for _ in range(2)]
    answers = squad.decode(examples, made, *logits, tools.tokenizer, config).answers
    for number, context in enumerate(contexts):
        assert answers[str(number)] in f"{context} empty"  # the release's word for no answer
    assert set(np.asarray(made.example_index).tolist()) == set(range(len(texts)))
    tools.counts["answers"] += len(texts)


def masks(tools: Tools, rows: list[list[int]]) -> None:
    """Predictions are text, sorted, and no more than allowed; all else stays as it was, in the graph too."""
    ids = np.zeros([len(rows), 24], int)
    for row, values in zip(ids, rows, strict=True):
        row[: len(values) + 2] = [1, *(FIRST + value for value in values), 2]
    seed, whole_word = tools.rng.randrange(99), tools.rng.random() < 0.5
    policy = MaskingPolicy(whole_word=whole_word)
    starts = ids % 3 != 2 if whole_word else None
    keys = make_keys(seed, np.arange(len(ids)))
    found = mask_batch(ids, ids >= FIRST, keys, starts, policy, MaskingVocabulary.of(VOCAB), 6)
    for masked in (found, mask_tensors(ids, policy, MaskingVocabulary.of(VOCAB), 6, 0)):
        input_ids, positions, labels, is_prediction = map(np.asarray, masked)
        for row in range(len(ids)):
            places = positions[row][is_prediction[row].astype(bool)]
            assert (ids[row][places] >= FIRST).all() and (np.diff(places) > 0).all()
            assert (labels[row][: len(places)] == ids[row][places]).all()
            others = np.setdiff1d(np.arange(24), places)
            assert (input_ids[row][others] == ids[row][others]).all()
    tools.counts["masked sequences"] += 2 * len(rows)


PROPERTIES = {
    tokenization: st.lists(_TEXTS, min_size=1, max_size=40),
    table: st.lists(st.tuples(_TEXTS, _TEXTS), min_size=1, max_size=9),
    json_text: st.lists(_TEXTS | st.text('{}[]:,"\\ \t\n0123456789eE+-.truefalsnuINy', max_size=30), max_size=40),
    packed: st.lists(st.tuples(_SMALL, _SMALL, _SMALL), max_size=40),
    windows: st.lists(_TEXTS, min_size=1, max_size=9),
    masks: st.lists(st.lists(st.integers(0, 79), max_size=22), min_size=16, max_size=16),
}
_EXAMPLES = {tokenization: 40, masks: 15}


def trial(folder: str, rng: random.Random, number: int, counts: Counter) -> None:
    """Examines a property on some examples. The one that fails is made as small as possible."""
    vocab_file = os.path.join(folder, "vocab.txt")
    with open(vocab_file, "w", encoding="utf-8") as writer:
        writer.write("\n".join(_PIECES) + "\n")
    tokenizer = FullTokenizer(vocab_file, do_lower_case=rng.random() < 0.5)
    graph = GraphTokenizer.of(tokenizer, ())
    assert graph.tokenize(tf.constant(["ab"])).shape[0] == 1
    tools = Tools(folder, tokenizer, graph, rng, counts)
    for function in PROPERTIES:
        examine(function, tools, rng.randrange(1 << 30))


def examine(function: Callable, tools: Tools, seed: int) -> None:
    """Lets hypothesis look for examples that do not have a property."""

    def check(examples):
        function(tools, examples)

    settings = hypothesis.settings(
        max_examples=_EXAMPLES.get(function, 25),
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    hypothesis.seed(seed)(settings(hypothesis.given(PROPERTIES[function])(check)))()
