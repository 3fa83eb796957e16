"""Reports the number, the classes, the lengths and unusual properties of the tokenized examples of a split."""

import collections
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bert_tf.data_report import findings, texts
from bert_tf.data_report.rows import inputs_of
from bert_tf.runtime.errors import first_of
from bert_tf.runtime.messages import say
from bert_tf.text import Tokenizer
from bert_tf.text.vocabulary import CLS, SEP, UNK

# The number of examples whose texts are checked, and the largest number of characters to print.
_EXAMPLES, _SHOWN = 500, 300
# The attributes of examples with the right answer.
_ANSWERS = ("label", "tags", "orig_answer_text")


def report_truncation(truncated: int, total: int, split: str, max_seq_length: int) -> None:
    """Prints how many examples of a set were truncated, if any were."""
    if truncated:
        say(
            f"{split}: {truncated} of {total} examples are longer than {max_seq_length} tokens and were truncated "
            "(--max_seq_length)."
        )


def report_inputs(
    lines: Iterable[str], tokenizer: Tokenizer, where: str, ids: np.ndarray | None = None, **options: bool
) -> dict[str, int]:
    """Reports unusual properties of texts and their tokens.

    Args:
      lines: the texts. The first ones are checked.
      tokenizer: the tokenizer.
      where: the location of the texts, for messages.
      ids: the ids of all sequences; None to tokenize some of the texts.
      **options: see `findings.report`. Findings about the texts themselves are printed once in a process.

    Returns:
      The numbers of tokens of the texts, and of [UNK].
    """
    sample = list(itertools.islice(lines, _EXAMPLES))
    if ids is None:
        ids = np.array(texts.sample_ids(sample, tokenizer))
    cls, sep, unknown = (int(np.count_nonzero(ids == tokenizer.vocab.get(token))) for token in (CLS, SEP, UNK))
    tokens = len(ids) - cls - sep
    findings.report(texts.unknown_tokens(unknown, tokens, where), **options)
    findings.report(texts.unusual_texts(sample, where, tokenizer.basic_tokenizer.strip_accents), once=True)
    return {"tokens": tokens, "unknown": unknown}


def report_split(
    name: str,
    examples: Sequence[Any],
    features: Any,
    tokenizer: Tokenizer,
    has_labels: bool,
    has_classes: bool,
    allows_errors: bool,
) -> dict[str, Any]:
    """Prints a description of a split and its first example, and reports unusual properties.

    Args:
      name: the name of the split.
      examples: the examples.
      features: their `FeatureSet`.
      tokenizer: the tokenizer.
      has_labels: whether the labels are right. A test set may have other values.
      has_classes: whether the labels are classes.
      allows_errors: if True, errors are printed as warnings.

    Returns:
      The counts, for the record of the run.

    Raises:
      InputError: if a finding is an error, and errors are not allowed.
    """
    answers = list(map(_answer, examples)) if has_labels else [None]
    classes: collections.Counter[str] = collections.Counter()
    for answer in answers if has_classes else ():
        labels = answer if isinstance(answer, tuple | list) else [answer]
        classes.update(str(label) for label in labels if label is not None)
    shown = first_of((f"{label} {count}" for label, count in classes.most_common()), 10)
    lengths = f"{features.lengths.mean():.1f} tokens on average, {features.max_length} at most"
    say(f"{name}: {len(examples)} examples, {lengths}{f'; classes: {shown}' if classes else ''}.")
    tokens = " ".join(tokenizer.convert_ids_to_tokens(features.input_ids[: features.lengths[0]].tolist()))
    answer = "" if answers[0] is None else f" -> {answers[0]!r:.{_SHOWN}}"
    say(f"{name}, first example: {tokens[:_SHOWN]}{' ...' * (len(tokens) > _SHOWN)}{answer}")
    lines = ("\n".join(inputs_of(example)) for example in examples)
    counts = report_inputs(lines, tokenizer, name, features.input_ids, allows_errors=allows_errors)
    return {"examples": len(examples), "classes": dict(classes), **counts, "truncated": features.num_truncated}


def _answer(example: Any) -> Any:
    """Returns the right answer of an example; None if it has none."""
    answers = (getattr(example, name, None) for name in _ANSWERS)
    return next((answer for answer in answers if answer is not None), None)
