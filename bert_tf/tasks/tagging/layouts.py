"""Finds the columns of the words and the tags in files with a word on each line."""

import collections
import re
from collections.abc import Sequence, Set
from typing import NamedTuple

from bert_tf.runtime.errors import InputError, first_of
from bert_tf.tasks.tagging import schemes
from bert_tf.tasks.tagging.schemes import TAG
from bert_tf.tasks.tagging.tagged_tables import TAG_COLUMNS, WORD_COLUMNS

# The number of a CoNLL-U line that is not a word of the text: 1-2 for several words, 8.1 for an empty node.
NO_WORD = re.compile(r"\d+[-.]\d+")
_NUMBER = re.compile(r"-?\d+")
_SCORE = re.compile(r"[-+]?\d*\.?\d+([eE][-+]?\d+)?")
# From this number of rows on, there are more different words than tags, and words that are not numbers.
_ENOUGH_ROWS = 50
_MISSING = re.compile(r"_|[ERT]\d+|\S+( \S+){2,}")  # the second form is an id of brat, the third one a sentence
# The number of sentences in which the form of the cells is checked, and the fraction of the cells with a wrong form.
_CHECKED, _MOST = 200, 0.9
_QUOTED = re.compile(r"\W?['\"].+")
# The largest fraction of the words of letters that are their own tags.
_REPEATED = 0.2
_CONLL_U = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
# Columns of CoNLL-U in which "_" means that the value is missing. In other columns, "_" means "no features".
_NEED_VALUE = ("upos", "xpos", "deprel")
# Names in a first line that is a header.
_HEADER_WORDS = (*WORD_COLUMNS, "text")
_HEADER_TAGS = (*TAG_COLUMNS, "ner_tag", "entity", "bio", "iob", "chunk", "pos", "pos_tag", "pos_tags", "upos", "xpos")

Table = Sequence[Sequence[str]]  # the cells of rows


class Layout(NamedTuple):
    """The layout of a file.

    Attributes:
      width: the number of columns.
      word: the index of the column with the words.
      tag: the index of the column with the tags; -1 if tags are not read.
      is_counted: whether the first column counts the words of each sentence.
      has_header: whether the first row contains the names of the columns.
      needs_value: whether the tag "_" means that the tag is missing.
    """

    width: int
    word: int
    tag: int
    is_counted: bool
    has_header: bool
    needs_value: bool


def find_layout(
    path: str, sentences: Sequence[Table], named: Sequence[str], has_tags: bool, columns: tuple[str, str]
) -> Layout:
    """Returns the layout of a file.

    Args:
      path: the file, for messages.
      sentences: the rows of each sentence.
      named: the names of the columns in lower case; empty if no comment has them.
      has_tags: whether to read tags.
      columns: see `conll.read_sentences`.

    Raises:
      InputError: if a column does not exist, or the detected columns do not contain words and tags.
    """
    cells = [cell for sentence in sentences[:_CHECKED] for row in sentence for cell in row]
    if has_tags or len(cells) >= _ENOUGH_ROWS:
        _check_cells(path, cells)
    header, width = [cell.casefold() for cell in sentences[0][0]], len(sentences[0][0])
    wanted = [name.casefold() for name in columns if not _NUMBER.fullmatch(name)]
    has_header = any(name in header for name in wanted if name) or (
        not {*header}.isdisjoint(_HEADER_WORDS) and not {*header}.isdisjoint(_HEADER_TAGS)
    )
    if has_header:
        sentences = [sentences[0][1:], *sentences[1:]]
    rows = [row for sentence in sentences for row in sentence if len(row) == width]
    # A majority of the sentences decides, so a single bad row does not change the result.
    is_counted = width > 1 + has_tags and 2 * sum(map(_counts_words, sentences)) > len(sentences)
    names = header if has_header else named or (_CONLL_U if is_counted and width == len(_CONLL_U) else ())

    def index(column: str, flag: str, default: int) -> int:
        if not column:
            return default
        if column.casefold() in names:
            return names.index(column.casefold())
        number = int(column) if _NUMBER.fullmatch(column) else 0
        position = number - 1 if number > 0 else width + number
        if not number or not 0 <= position < width:
            known = f", or {first_of(names)}" if names else ""
            raise InputError(f"{path} has no column {column!r}. Use a number from 1 to {width}{known}.", flag)
        return position

    word, tag = int(is_counted), width - 1
    entities = [i for i, cells in enumerate(zip(*rows, strict=True)) if _are_entity_tags(set(cells))]
    if has_header:
        word, tag = (
            next((names.index(name) for name in known if name in names), column)
            for known, column in ((_HEADER_WORDS, word), (_HEADER_TAGS, tag))
        )
    elif is_counted and "upos" in names:
        tag, entities = names.index("upos"), []
    elif is_counted:
        tag = next((i for i in entities if i > word), tag)
    elif not columns[1] and entities == [0] and width == 2 and not _has_o([row[1] for row in rows]):
        word, tag = 1, 0
    word = index(columns[0], "--word_column", word)
    _check_words(path, [row[word] for row in rows], not columns[0] and width > 1 + has_tags)
    if rows and has_tags and not columns[1] and tag != word:
        _check_tags(path, rows, word, tag, entities)
    tag = index(columns[1], "--tag_column", tag) if has_tags else -1
    needs_value = has_tags and tag < len(names) and names[tag] in _NEED_VALUE
    return Layout(width, word, tag, is_counted, has_header, needs_value)


def _check_cells(path: str, cells: Sequence[str]) -> None:
    """Raises an InputError if most cells are in quotes, or are words that are joined with tags by one character."""
    marks = [character for character in {*cells[0]} - {"-"} if not character.isalnum()]
    joined = [re.compile(f".+{re.escape(mark)}.+") for mark in marks]
    for pattern in (_QUOTED, *joined):
        if sum(map(bool, map(pattern.fullmatch, cells))) > _MOST * len(cells):
            raise InputError(
                f"{path}: {cells[0]!r:.60} is not a single word or tag. Write a word and its tag on each line, without "
                "quotes, with a tab between them, and a blank line after each sentence."
            )


def _check_words(path: str, words: Sequence[str], is_detected: bool) -> None:
    """Raises an InputError if most words are missing or, in a detected column, are numbers or begin alike."""
    pattern = _MISSING
    if is_detected and len(words) >= _ENOUGH_ROWS:
        start = collections.Counter(word[:2] for word in words).most_common(1)[0][0]
        pattern = re.compile(rf"{_MISSING.pattern}|\d+([-.:]\d+)?|{re.escape(start)}.*")
    bad_words = list(filter(pattern.fullmatch, words))
    if 2 * len(bad_words) > len(words):
        raise InputError(f"{path}: most words are {bad_words[0]!r} or similar. Add the text, or pass --word_column.")


def _check_tags(path: str, rows: Table, word: int, tag: int, entities: Sequence[int]) -> None:
    """Raises an InputError if a detected column has no tags.

    Args:
      path: the file.
      rows: all rows.
      word: the column of the words.
      tag: the column of the tags.
      entities: the columns with tags of entities.
    """
    words, tags = ([row[column] for row in rows] for column in (word, tag))
    is_last = tag == len(rows[0]) - 1
    name = "the last column" if is_last else f"column {tag + 1}"
    letters = [(word.casefold(), tag.casefold()) for word, tag in zip(words, tags, strict=True) if word.isalpha()]
    problem = ""
    if entities and tag not in entities and not _has_o(tags):
        problem = f"column {entities[0] + 1} has tags of entities, but {name} has none"
    elif len(rows) >= _ENOUGH_ROWS and len({*tags}) > 2 * len({*words}):
        problem = f"the words have {len({*words})} different cells, and {name} has {len({*tags})}, so it has no tags"
    elif all(map(_SCORE.fullmatch, tags)):
        problem = f"{name} has numbers instead of tags"
    elif sum(word == tag for word, tag in letters) > _REPEATED * len(letters):
        problem = f"{name} repeats the words instead of tags"
    elif is_last and 2 * sum(tag in "_-" for tag in tags) > len(tags):
        problem = f"{name} has mostly '_' or '-' instead of tags"
    elif is_last and (
        others := [i + 1 for i in entities if i not in (word, tag) and _types(rows, i) & _types(rows, tag)]
    ):
        problem = f"column {others[0]} and {name} have tags of the same types"
    if problem:
        raise InputError(f"{path}: {problem}. Pass --tag_column, and --word_column if needed.")


def _types(rows: Table, column: int) -> set[str]:
    """Returns the types in a column of tags with prefixes."""
    return {row[column][2:] for row in rows} - {""}


def _has_o(cells: Sequence[str]) -> bool:
    """Returns True if many cells are O, as in plain tags of entities. The word "O" is rare."""
    return 10 * cells.count("O") >= len(cells)


def _are_entity_tags(cells: Set[str]) -> bool:
    """Returns True if all cells are O or tags with a prefix and a type."""
    tags = set(map(schemes.spelling(cells), cells)) - {"O"}
    return any(not tag.endswith("-_") for tag in tags) and all(map(TAG.fullmatch, tags))


def _counts_words(table: Table) -> bool:
    """Returns True if the first cells of a sentence's rows are consecutive numbers."""
    numbers = [cells[0] for cells in table if not NO_WORD.fullmatch(cells[0])]
    start = int(numbers[0]) if numbers and _NUMBER.fullmatch(numbers[0]) else -1
    return start >= 0 and numbers == [str(number) for number in range(start, start + len(numbers))]
