"""Finds what is unusual in a sample of texts: markup, scripts that lose letters, hard-wrapped lines, unknown tokens."""

import collections
import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from bert_tf.data_report.findings import Finding
from bert_tf.text import Tokenizer
from bert_tf.text.characters import CJK_BLOCKS, is_accent, strip_accents
from bert_tf.text.vocabulary import CONTINUATION, UNK

# The lines of a text are unusual if more than this fraction matches a pattern, and unusable from the second one on.
_UNUSUAL, _UNUSABLE, _FEW_LINES = 0.05, 0.2, 2
# The number of characters whose marks are counted, and of characters that are tokenized.
_COUNTED, _TOKENIZED = 100_000, 30_000
# Largest usual fraction of characters that lose a mark.
_MARKS = 0.01
_ASCII = re.compile("[\x00-\x7f]+")
# Marks in the block of the Latin, Greek and Cyrillic accents that distinguish letters in Vietnamese: hook, horn, dot.
_ACCENTS, _VIETNAMESE = range(0x300, 0x370), "\u0309\u031b\u0323"
# Largest usual fraction of unknown tokens, and the number of tokens from which a larger fraction than half is an error.
_UNKNOWN, _MANY_TOKENS, _FEW_UNKNOWN = 0.03, 1000, 8
# The ends of sentences, and the width of lines for a terminal or an e-mail, in characters.
_SENTENCE_END = re.compile(r"[.!?…:;。．！？।۔؟]\W*$")
_WIDTHS, _WRAPPED, _FEW_WRAPPED, _CASED = range(30, 111), 0.4, 5, 0.2


class Check(NamedTuple):
    """A pattern that is unusual in plain text.

    Attributes:
      pattern: found in a line or, for the form of a file, at its start.
      problem: what was found.
      remedy: what to do.
      parts: a line without one of these texts does not match. Counting them is faster.
    """

    pattern: re.Pattern[str]
    problem: str
    remedy: str
    parts: tuple[str, ...] = ()


_TO_TEXT = "Convert it to plain text first."
# The forms of files that contain text. The start of the text shows the form.
_FORMS = (
    Check(re.compile(r"<doc\s[^>]*>"), "output of WikiExtractor with <doc> tags", "Run WikiExtractor with --json."),
    Check(
        re.compile(r"(<\?xml[^>]*>\s*)?<mediawiki"),
        "a Wikipedia dump",
        "Extract its text with WikiExtractor and --json.",
    ),
    Check(re.compile(r"(<\?xml[^>]*>\s*)?<(!doctype )?html", re.IGNORECASE), "HTML", _TO_TEXT),
    Check(re.compile(r"<\?xml"), "XML", _TO_TEXT),
    Check(re.compile(r"\{\\rtf"), "RTF", _TO_TEXT),
    Check(re.compile(r"WEBVTT"), "subtitles", "Remove the numbers and timestamps first."),
    Check(re.compile(r"%!PS|\\documentclass|\\input"), "PostScript or LaTeX", _TO_TEXT),
)
# Patterns in lines.
_LINES = (
    Check(
        re.compile(
            r"<(?!/?s>)(/[a-z][\w:.-]*\s*|[a-z][\w:.-]*(\s+[\w:.-]+\s*=[^<>]*|\s*/)|"
            r"br|p|hr|li|t[dr]|div|span|h\d|[biu]|em|strong)>|&(nbsp|amp|lt|gt|quot|apos|#x?[\da-f]+);",
            re.IGNORECASE,
        ),
        "HTML or XML",
        "Remove the tags and entities.",
        ("<", "&"),
    ),
    Check(
        re.compile(r"\[\[[^\[\]]+\]\]|\{\{|'''"),
        "wiki markup",
        "Extract the text with WikiExtractor and --json.",
        ("[[", "{{", "'''"),
    ),
    Check(re.compile(r"^\W*(\d{1,2}:)?\d{1,2}:\d\d[.,:]\d\d"), "timestamps", "Remove them from the lines.", (":",)),
    Check(re.compile(r"\\[a-z]+\{|\\(pard?|fs\d+)\b"), "commands of LaTeX or RTF", _TO_TEXT, ("\\",)),
    Check(
        re.compile(r"(?<![#\w])##[^\W#]"),
        "'##' before words",
        "Remove the characters '##'. To mask words that are not separated by spaces, pass --word_segmenter.",
        ("##",),
    ),
)


def unusual_texts(lines: Sequence[str], where: str, strips_accents: bool) -> Iterator[Finding]:
    """Finds markup and other forms in texts, and scripts in which removing accents removes letters.

    Args:
      lines: the texts, or the lines of a file.
      where: the location of the texts, for messages.
      strips_accents: whether the tokenizer removes accents.
    """
    text = "\n".join(lines)
    start = text[:1000].lstrip()
    if form := next((form for form in _FORMS if form.pattern.match(start)), None):
        yield Finding("form", f"{where} is {form.problem}. {form.remedy}", is_error=True)
        return
    usual = max(_FEW_LINES, _UNUSUAL * len(lines))
    for pattern, problem, remedy, parts in _LINES:
        if sum(map(text.count, parts)) > usual and (count := sum(map(bool, map(pattern.search, lines)))) > usual:
            share = count / len(lines)
            message = f"{where}: {share:.0%} of the lines have {problem}. {remedy}"
            yield Finding(problem, message, share > _UNUSABLE)
    if strips_accents and not text.isascii():
        yield from _removed_marks(text[:_COUNTED], where)


def _removed_marks(text: str, where: str) -> Iterator[Finding]:
    counts = collections.Counter(unicodedata.normalize("NFD", _ASCII.sub("", text)))
    marks = {
        char: number
        for char, number in counts.items()
        if is_accent(char) and (ord(char) not in _ACCENTS or char in _VIETNAMESE)
    }
    share = sum(marks.values()) / len(text)
    if share > _MARKS:
        word = next(word for word in text.split() if not marks.keys().isdisjoint(unicodedata.normalize("NFD", word)))
        yield Finding(
            "marks",
            f"{where}: the tokenizer removes accents, and {share:.1%} of the characters are marks that belong to "
            f"letters: {word!r} becomes {strip_accents(word)!r}. Make the vocabulary and the data with "
            "--nostrip_accents, or use a cased model.",
        )


def unknown_tokens(unknown: int, tokens: int, where: str) -> Iterator[Finding]:
    """Finds a large fraction of [UNK].

    Args:
      unknown: the number of tokens that are [UNK].
      tokens: the number of all tokens of the texts.
      where: the location of the texts, for messages.
    """
    if unknown > max(_FEW_UNKNOWN, _UNKNOWN * tokens):
        share = unknown / tokens
        yield Finding(
            "unknown",
            f"{where}: {share:.0%} of the tokens are [UNK], so the vocabulary does not fit the text. Use a model or a "
            "vocabulary for this language and casing.",
            share > 0.5 and tokens >= _MANY_TOKENS,
        )


def rare_characters(unknown: int, words: int) -> Iterator[Finding]:
    """Finds an alphabet that is too small: many words with characters that the vocabulary lacks."""
    if unknown > _UNKNOWN * words:
        problem = f"{unknown / words:.0%} of the words have characters that are not in the vocabulary"
        yield Finding("alphabet", f"{problem}, so they become [UNK]. Raise --max_alphabet.")


def sample_ids(texts: Sequence[str], tokenizer: Tokenizer) -> list[int]:
    """Returns the ids of some of the texts, evenly distributed; empty if the vocabulary has no [UNK]."""
    step = 1 + sum(map(len, texts)) // _TOKENIZED
    has_unknown = UNK in tokenizer.vocab
    return list(itertools.chain.from_iterable(map(tokenizer.encode, texts[::step]))) if has_unknown else []


def unusual_inputs(texts: Iterable[str], tokenizer: Tokenizer, where: str) -> Iterator[Finding]:
    """Finds what is unusual in texts for prediction: the findings of `unusual_texts` and `unknown_tokens`."""
    lines = list(itertools.islice(texts, 10_000))
    ids = sample_ids(lines, tokenizer)
    yield from unusual_texts(lines, where, tokenizer.basic_tokenizer.strip_accents)
    yield from unknown_tokens(ids.count(tokenizer.vocab.get(UNK)), len(ids), where)


def words_of_one_token(texts: Sequence[str], ids: Sequence[int], tokenizer: Tokenizer, where: str) -> Iterator[Finding]:
    """Finds texts whose tokens do not show words, for whole-word masking without a segmenter.

    Args:
      texts: the texts.
      ids: the ids of some of the texts.
      tokenizer: the tokenizer.
      where: the location of the texts, for messages.
    """
    text = "".join(texts)[:_COUNTED]
    ideographs = sum(n for char, n in collections.Counter(text).items() if _is_cjk(char))
    continued = any(tokenizer.inv_vocab[number].startswith(CONTINUATION) for number in set(ids))
    if ids and (not continued or ideographs > len(text) / 2):
        yield Finding(
            "words",
            f"{where}: words have only one token, so --do_whole_word_mask masks single tokens. For text without spaces "
            "between words, pass --word_segmenter, such as jieba:lcut; for words separated by spaces, "
            "--word_segmenter=spaces.",
        )


def _is_cjk(char: str) -> bool:
    return any(first <= ord(char) <= last for first, last in CJK_BLOCKS)


def wrapped_lines(lines: Sequence[str | None], where: str) -> Iterator[Finding]:
    """Finds lines that end inside sentences, at about the same width, in a script with capitals.

    Args:
      lines: the lines of a file. None or "" ends a paragraph.
      where: the location of the lines, for messages.
    """
    lengths = sorted(len(line) for line in lines if line)
    has_case = sum(line != line.lower() for line in lines if line) > _CASED * len(lengths)
    width = lengths[int(0.95 * len(lengths))] if lengths else 0
    wrapped = sum(
        bool(line and after and len(line) > 0.75 * width)
        and not _SENTENCE_END.search(line)
        and after.lstrip()[:1].islower()
        for line, after in itertools.pairwise(lines)
    )
    if has_case and width in _WIDTHS and wrapped >= max(_FEW_WRAPPED, _WRAPPED * len(lengths)):
        yield Finding(
            "wrapped",
            f"{where}: {wrapped} of {len(lengths)} lines end inside a sentence, so the lines are hard-wrapped. Pass "
            "--join_lines and --split_sentences. If blank lines separate paragraphs, also pass --documents=file.",
        )
