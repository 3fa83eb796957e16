"""Compares the two modes that answer questions, arrays and the served graph, on the same cases.

The functions with original names call the array mode, and test_squad compares them with the original code.
"""

import functools
import random

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.graphs import answers
from bert_tf.graphs.tokenization import GraphTokenizer
from bert_tf.tasks import squad
from bert_tf.tasks.squad.predictions import NO_WINDOW_SCORE, PLACEHOLDER
from bert_tf.text import FullTokenizer
from tests.conftest import golden_lines, golden_path

CONTEXT = "The leader, Steve Smith's heir (1895-1943), left\xa0Paris  in cafe\u0301s."
# Text that the tokenizer changes, splits or replaces by [UNK], and answers that could begin earlier in the first word.
ODD_WORDS = [*"aA(.#", "a-a", "(a)", "A.a", "again", "x#y", "Σ.Β", "ΑΣ", "e\u0301é", "İß½", "文字", "한글", "a\u200bb"]
ODD_WORDS += ["[MASK]", "\xa0", "ﬁn", "a)a", "\u3000", "##", "qqqqx"]
# n_best_size, max_answer_length, and the no-answer threshold for SQuAD 2.0; None for SQuAD 1.1.
SETTINGS = [(20, 30, None), (1, 5, None), (20, 1000, 0.0), (1, 30, 0.0), (2, 1, -2.0)]


ROOMY = (64, 16, 8)
# Name -> the question, the context, the lengths (max_seq_length, doc_stride, max_query_length), the first and the last
# token of the answer (None for [CLS]), which get the highest scores, and the answer in the original code and with exact
# characters.
CASES = {
    "empty context": ("a?", "", (12, 4, 4), None, PLACEHOLDER, ""),
    "context without tokens": ("a?", " \n\u200b", (12, 4, 4), None, PLACEHOLDER, ""),
    "one word": ("a?", "Paris", (12, 4, 4), (0, 0), "Paris", "Paris"),
    "empty question": ("", "Paris", (12, 4, 4), (0, 0), "Paris", "Paris"),
    "stride = window": ("a", "b c d e f g", (6, 2, 4), (1, 1), "c", "c"),
    "stride longer than the window": ("a", "b c d e f", (6, 99, 4), (4, 4), "f", "f"),
    "question cut": ("a b c d", "b c d e f", (8, 2, 2), (3, 3), "e", "e"),
    # Both windows show the tokens d and e with equal context, so the first window counts.
    "equal context": ("a", "b c d e f g", (8, 2, 4), (2, 3), "d e", "d e"),
    # The last window is shorter. If the smaller context is equal in both windows, a token belongs to the longer window.
    "longer window": ("a", "b c d e f", (8, 2, 4), (4, 4), "f", "f"),
    "answer at the border of two windows": ("a", "b c d e f g", (7, 3, 4), (0, 2), "b c d", "b c d"),
    "several pieces": ("a", "electroencephalographically b", (8, 2, 4), (3, 4), "lographic", "lographic"),
    "whole words": ("Who?", CONTEXT, ROOMY, (3, 4), "Steve Smith", "Steve Smith"),
    "number in a word": ("Who?", CONTEXT, ROOMY, (9, 9), "1895", "1895"),
    "numbers in a word": ("Who?", CONTEXT, ROOMY, (9, 11), "1895-1943", "1895-1943"),
    "word that the release doesn't split": ("Who?", CONTEXT, ROOMY, (14, 14), "left\xa0Paris", "left"),
    "two spaces": ("Who?", CONTEXT, ROOMY, (15, 16), "left\xa0Paris in", "Paris  in"),
    "combining accent": ("Who?", CONTEXT, ROOMY, (17, 17), "cafe\u0301s.", "cafe\u0301s"),
    "accent of one character": ("Who?", "a Café.", ROOMY, (1, 1), "Café", "Café"),
    "CJK": ("Who?", "北京大学 x", ROOMY, (1, 2), "京大", "京大"),
    "no answer": ("Who?", "b c", ROOMY, None, "", ""),
}


@functools.cache
def tokenizer(vocab="vocab.txt", do_lower_case=True):
    return FullTokenizer(str(golden_path(f"tokenization/{vocab}")), do_lower_case)


@functools.cache
def graph_tokenizer(*arguments):
    vocab = tokenizer(*arguments)
    return GraphTokenizer(vocab.vocab, vocab.do_lower_case)


class Modes:
    """Questions with windows, as arrays and in the served graph.

    Args:
      texts: questions and contexts.
      lengths: max_seq_length, doc_stride, max_query_length.
      arguments: arguments of `tokenizer`.
    """

    def __init__(self, texts, lengths, *arguments):
        self.tokenizer = tokenizer(*arguments)
        self.lengths = lengths
        self.examples = [squad.make_example(f"q{i}", *text) for i, text in enumerate(texts)]
        config = squad.SquadConfig(*lengths, answer_text="offsets")
        self.windows = squad.featurize(self.examples, self.tokenizer, config, is_training=False)
        question, self.context = (tf.constant(column, tf.string) for column in zip(*texts, strict=True))
        self.pieces = graph_tokenizer(*arguments).tokenize_with_offsets(self.context)
        cls, sep = self.tokenizer.vocab["[CLS]"], self.tokenizer.vocab["[SEP]"]
        query = graph_tokenizer(*arguments).tokenize(question)
        self.graph_windows = answers.cut_windows(query, self.pieces.ids, cls, sep, config)

    def check_windows(self):
        """Checks that the modes have the same windows, maximal context, and positions of tokens in the text."""
        graph, windows = self.graph_windows, self.windows
        assert graph.tokens.ids.numpy().tolist() == windows.input_ids.tolist()
        assert graph.tokens.lengths.numpy().tolist() == windows.lengths.tolist()
        assert graph.is_max_context.numpy().tolist() == windows.is_max_context.tolist()
        counts = np.bincount(windows.example_index, minlength=len(self.examples))
        assert graph.counts.numpy().tolist() == counts.tolist()
        assert graph.text_start.numpy().tolist() == windows.text_start.tolist()
        for i, document in enumerate(windows.documents):
            spans = zip(self.pieces.starts[i].numpy(), self.pieces.ends[i].numpy(), strict=True)
            assert [tuple(span) for span in spans] == document.spans

    def check_answers(self, start_logits, end_logits, n_best_size, max_answer_length, threshold):
        """Checks that the modes agree on answers for logits [W, T]. Returns the original and the exact answers."""
        settings = {"n_best_size": n_best_size, "max_answer_length": max_answer_length}
        settings["version_2_with_negative"] = threshold is not None
        original, config = (squad.SquadConfig(**settings, answer_text=text) for text in ("original", "offsets"))
        arrays, null = (self.examples, self.windows, start_logits, end_logits), threshold or 0.0
        released, exact = (
            squad.decode(*arrays, config=each, null_score_diff_threshold=null) for each in (original, config)
        )
        windows = self.graph_windows
        is_token = np.arange(start_logits.shape[1]) < self.windows.lengths[:, None]
        logits = tf.constant(np.stack([start_logits[is_token], end_logits[is_token]], axis=1).reshape(-1, 2))
        spans = answers.best_spans(windows, logits, config)
        null_score = answers.null_scores(windows, logits)
        options = {"n_best_size": n_best_size, "threshold": threshold}
        found = answers.place_answers(self.context, self.pieces, spans, null_score, **options)
        found = {name: values.numpy().tolist() for name, values in found.items()}
        for i, (qas_id, answer) in enumerate(exact.answers.items()):
            listed = [entry["text"] for entry in exact.n_best[qas_id] if entry["text"] not in ("", PLACEHOLDER)]
            given = [text.decode() for text in found["answers"][i][: found["num_answers"][i]]]
            assert given == listed[: len(given)]  # fewer if very many spans have the same text
            assert len(given) >= min(len(listed), 2)
            answer = answer if answer != PLACEHOLDER else ""
            start, end = found["start"][i], found["end"][i]
            assert found["answer"][i].decode() == self.examples[i].context[max(start, 0) : max(end, 0)] == answer
            best = next((entry for entry in exact.n_best[qas_id] if entry["text"] == answer != ""), None)
            if best:
                assert found["score"][i] == pytest.approx(best["start_logit"] + best["end_logit"])
            if exact.null_odds.get(qas_id, NO_WINDOW_SCORE) != NO_WINDOW_SCORE:
                assert found["null_score"][i] - found["score"][i] == pytest.approx(exact.null_odds[qas_id])
        return released.answers, exact.answers

    def random_logits(self, seed, scale=1.0):
        """Returns logits [2, W, T] in coarse steps, so that many are equal. Padding has low values."""
        logits = np.random.default_rng(seed).normal(-6, 2, [2, len(self.windows), self.lengths[0]])
        is_token = np.arange(self.lengths[0]) < self.windows.lengths[:, None]
        return np.where(is_token, np.round(logits * scale) / scale, -99.0)


@pytest.mark.parametrize(("question", "context", "lengths", "span", "released", "exact"), CASES.values(), ids=CASES)
def test_cases(question, context, lengths, span, released, exact):
    modes = Modes([(question, context)], lengths)
    modes.check_windows()
    windows = modes.windows
    logits = modes.random_logits(seed=0)
    for threshold in (None, 0.0):
        for window, first in enumerate(windows.first_lengths - windows.text_start):
            for x, piece in zip(logits, span or (-first, -first), strict=True):
                position = first + piece
                if 0 <= position < windows.lengths[window] - 1:
                    x[window, position] = 9.0
        found = modes.check_answers(*logits, 20, 30, threshold)
        if span or threshold is not None:
            assert [answers["q0"] for answers in found] == ([released, exact] if span else ["", ""])
    for settings in (SETTINGS[1], SETTINGS[4]):
        modes.check_answers(*modes.random_logits(seed=1), *settings)


@pytest.mark.parametrize("seed", range(10))
def test_random_texts(seed):
    rng = random.Random(seed)
    texts = golden_lines("tokenization/inputs.jsonl")
    pairs = []
    for _ in range(4):
        odd = " ".join(rng.choice(ODD_WORDS) for _ in range(rng.randrange(60)))
        pairs.append((rng.choice(texts)[:40], rng.choice([odd, rng.choice(texts)])))
    pairs.append(("?", pairs[-1][1]))
    lengths = rng.choice([24, 40, 64]), rng.choice([1, 3, 8, 200]), rng.choice([0, 3, 8])
    modes = Modes(pairs, lengths, rng.choice(["vocab.txt", "vocab_tiny.txt"]), rng.random() < 0.5)
    modes.check_windows()
    logits = modes.random_logits(seed, rng.choice([0.5, 1.0, 1000.0]))
    for settings in SETTINGS:
        modes.check_answers(*logits, *settings)
