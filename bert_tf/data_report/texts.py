"""Checks a sample of texts for markup, scripts that lose letters, hard-wrapped lines and unknown tokens."""

import collections
import itertools
import re
import unicodedata
from collections.abc import Iterator, Sequence

from bert_tf.data_report.findings import Finding
from bert_tf.data_report.forms import LINE_FORMS, NOTICE, TEXT_FORMS
from bert_tf.text import Tokenizer
from bert_tf.text.characters import is_accent, strip_accents
from bert_tf.text.vocabulary import CONTINUATION, UNK

# Fractions of lines that match a pattern. Above the first fraction, a text is unusual; from the second on, unusable.
_UNUSUAL, _UNUSABLE, _FEW_LINES = 0.05, 0.2, 2
# The number of characters in which marks are counted, and the number of characters to tokenize.
_COUNTED, _TOKENIZED = 100_000, 8_000
# Largest usual fraction of characters that lose a mark.
_MARKS = 0.01
_ASCII, _IDEOGRAPHS = re.compile("[\x00-\x7f]+"), re.compile("[\u3400-\u9fff]")
# Marks in the block of the Latin, Greek and Cyrillic accents that distinguish letters in Vietnamese: hook, horn, dot.
_ACCENTS, _VIETNAMESE = range(0x300, 0x370), "\u0309\u031b\u0323"
# Largest usual fraction of unknown tokens, and the number of tokens from which a larger fraction than half is an error.
_UNKNOWN, _MANY_TOKENS, _FEW_UNKNOWN = 0.03, 1000, 8
# The ends of sentences, and the width of lines for a terminal or an e-mail, in characters.
_SENTENCE_END = re.compile(r"[.!?…:;。．！？।۔؟]\W*$")
_WIDTHS, _WRAPPED, _FEW_WRAPPED, _CASED = range(30, 111), 0.4, 5, 0.2
# The number of lines from which a list of words is unusual, and the largest usual mean number of words.
_FEW_LISTED, _LONG = 100, 1000
# The smallest width of a line that is unusual if it is repeated, and the largest usual fraction of repeated lines.
_REPEATED_WIDTH, _REPEATED = 16, 0.1


def unusual_texts(lines: Sequence[str], where: str, strips_accents: bool) -> Iterator[Finding]:
    """Finds markup and other forms in texts, and scripts in which removing accents removes letters.

    Args:
      lines: the texts, or the lines of a file.
      where: the location of the texts, for messages.
      strips_accents: whether the tokenizer removes accents.
    """
    text = "\n".join(lines)
    for pattern, (form, remedy) in TEXT_FORMS.items():
        if re.match(pattern, text[:1000].lstrip()):
            yield Finding("form", f"{where} is {form}. {remedy}", is_error=True)
            return
    if re.match(NOTICE, text, re.IGNORECASE):
        yield Finding("notice", f"{where} begins with the notice of Project Gutenberg. Remove it, and the licence.")
    usual = max(_FEW_LINES, _UNUSUAL * len(lines))
    not_ascii = [line for line in lines if not line.isascii()]
    for form in LINE_FORMS:
        if form.parts and sum(map(text.count, form.parts)) <= usual:  # faster than the pattern
            continue
        candidates = [line for line in lines if any(part in line for part in form.parts)] if form.parts else not_ascii
        count = sum(map(form.matches, candidates))
        if count > usual:
            message = f"{where}: {count / len(lines):.0%} of the lines have {form.name}. {form.remedy}"
            yield Finding(form.name, message, count > _UNUSABLE * len(lines))
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


def sample_ids(texts: Sequence[str], tokenizer: Tokenizer) -> list[int]:
    """Returns the ids of some of the texts, evenly distributed; empty if the vocabulary has no [UNK]."""
    step = 1 + sum(map(len, texts)) // _TOKENIZED
    has_unknown = UNK in tokenizer.vocab
    return list(itertools.chain.from_iterable(map(tokenizer.encode, texts[::step]))) if has_unknown else []


def words_of_one_token(texts: Sequence[str], ids: Sequence[int], tokenizer: Tokenizer, where: str) -> Iterator[Finding]:
    """Finds texts whose tokens do not show words, for whole-word masking without a segmenter.

    Args:
      texts: the texts.
      ids: the ids of some of the texts.
      tokenizer: the tokenizer.
      where: the location of the texts, for messages.
    """
    text = "".join(texts)[:_COUNTED]
    ideographs = len(_IDEOGRAPHS.findall(text))
    continued = any(tokenizer.inv_vocab[number].startswith(CONTINUATION) for number in set(ids))
    if ids and (not continued or ideographs > len(text) / 2):
        yield Finding(
            "words",
            f"{where}: words have only one token, so --do_whole_word_mask masks single tokens. For text without spaces "
            "between words, pass --word_segmenter, such as jieba:lcut; for words separated by spaces, "
            "--word_segmenter=spaces.",
        )


def broken_words(lines: Sequence[str | None], where: str) -> Iterator[Finding]:
    """Finds words that are divided between two lines. For the arguments, see `wrapped_lines`."""
    pairs = ((line, after) for line, after in itertools.pairwise(lines) if line and after and line.endswith("-"))
    broken = sum(line[-2:-1].isalpha() and after.lstrip()[:1].islower() for line, after in pairs)
    if broken > max(_FEW_LINES, _UNUSUAL * len(lines)):
        message = f"{where}: {broken} lines end inside a word, at a hyphen. Join the parts of the words first."
        yield Finding("broken", message)


def unusual_lines(lines: Sequence[str | None], where: str, splits: bool) -> Iterator[Finding]:
    """Finds lines that occur several times, sorted lines, and lines that are too long for a sentence or a paragraph.

    Args:
      lines: see `wrapped_lines`.
      where: see `wrapped_lines`.
      splits: whether lines are split into sentences.
    """
    wide = [line for line in lines if line and len(line) >= _REPEATED_WIDTH]
    repeated, spaces = len(wide) - len(set(wide)), sum(line.count(" ") for line in wide)
    if len(wide) >= _FEW_LISTED and repeated > _REPEATED * len(wide):
        yield Finding("repeated", f"{where}: {repeated} of {len(wide)} lines are copies of other lines. Remove them.")
    elif len(wide) >= _FEW_LISTED and wide == sorted(wide):
        problem = "the lines are sorted, so the next line is not the next sentence"
        yield Finding("sorted", f"{where}: {problem}. Use the text in its order.")
    if not splits and spaces > _LONG * len(wide):
        mean = f"lines have {spaces / len(wide):.0f} words on average"
        yield Finding("long", f"{where}: {mean}. Write a sentence on each line, or pass --split_sentences.")


def wrapped_lines(lines: Sequence[str | None], where: str) -> Iterator[Finding]:
    """Finds lines that end inside sentences, at about the same width, and lists of words, in a script with capitals.

    Args:
      lines: the lines of a file. None or "" ends a paragraph.
      where: the location of the lines, for messages.
    """
    lengths = sorted(len(line) for line in lines if line)
    width = lengths[int(0.95 * len(lengths))] if lengths else 0
    if width >= _WIDTHS.stop:
        return
    has_case = sum(line != line.lower() for line in lines if line) > _CASED * len(lengths)
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
    cased = [line for line in lines if line and line.upper() != line.lower()]
    words = sum(len(line.split()) for line in cased)
    if len(cased) >= max(_FEW_LISTED, len(lengths) / 2) and words <= 2 * len(cased):
        mean = f"lines have {words / len(cased):.1f} words on average"
        yield Finding("list", f"{where}: {mean}. Write a sentence on each line, or pass --join_lines.")
