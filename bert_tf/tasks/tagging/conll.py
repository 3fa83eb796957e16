"""Reads and writes tagged sentences in columns: a word and its tag on each line, blank lines between sentences."""

import itertools
import re
from collections.abc import Callable, Iterator, Sequence, Set
from typing import NamedTuple

from bert_tf.runtime import files
from bert_tf.runtime.errors import InputError, first_of
from bert_tf.tasks import tables
from bert_tf.tasks.tagging import schemes, tagged_tables
from bert_tf.tasks.tagging.schemes import AUTO, PLAIN, TAG, Sentence
from bert_tf.tasks.tagging.tagged_tables import SENTENCE_COLUMNS, TAG_COLUMNS, WORD_COLUMNS

DOCUMENT_START = "-DOCSTART-"
# Column separators. str.split can't be used, because words may contain other Unicode white space.
_WHITE_SPACE = re.compile(r"[ \t]+")
_NUMBER = re.compile(r"-?\d+")
# From this number of rows on, there are more different words than tags, and words that are not numbers.
_ENOUGH_ROWS = 50
# Sentences have fewer words.
_LONG = 200
_SCORE = re.compile(r"[-+]?\d*\.?\d+([eE][-+]?\d+)?")
# The number of a CoNLL-U line that is not a word of the text: 1-2 for several words, 8.1 for an empty node.
_NO_WORD = re.compile(r"\d+[-.]\d+")
# Cells that are not words: missing values; if other columns may have the words, also numbers and ranges of numbers.
_MISSING, _NUMBERS = re.compile("_"), re.compile(r"_|\d+([-.:]\d+)?")
_GLOBAL_COLUMNS = "# global.columns"
# The columns of words and of tags; "" to detect them.
DETECTED = ("", "")
_CONLL_U = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
# Columns of CoNLL-U in which "_" means that the value is missing. In other columns, "_" means "no features".
_NEED_VALUE = ("upos", "xpos", "deprel")
# Names in a first line that is a header.
_HEADER_WORDS = (*WORD_COLUMNS, "text")
_HEADER_TAGS = (*TAG_COLUMNS, "ner_tag", "entity", "bio", "iob", "chunk", "pos", "pos_tag", "pos_tags", "upos", "xpos")


def read_sentences(
    source: str | Sequence[Sentence],
    has_tags: bool,
    scheme: str = "iob2",
    columns: tuple[str, str] = DETECTED,
    report: Callable[[str], None] = lambda line: None,
) -> Iterator[Sentence]:
    """Yields the sentences of a file, or sentences in memory, with the usual spelling of tags.

    If the first line with a word contains a tab, tabs separate the columns. Otherwise, spaces and tabs do. A blank line
    ends a sentence. A line that begins with -DOCSTART- starts a document. Comments before a sentence ("# id 17 ...")
    are skipped. A first line with known names of columns, such as "word" and "tag", is a header.

    If the columns are detected, a header names them. Otherwise, the words are in the first column and the tags in the
    last column, or vice versa if only the first of two columns has entity tags. If the first column counts the words,
    the words are in the second column. The tags are then in CoNLL-U's column "upos", or else in the
    first column with entity tags (in GermEval, the outer entities), or else in the last column.

    Args:
      source: the file or the sentences.
      has_tags: whether to read tags.
      scheme: the tagging scheme; "auto" to detect it. If a tag does not fit it, the sentence gets a `problem`.
      columns: the columns of the words and of the tags; "" to detect a column. A column is a 1-based number, a negative
        number counted from the end, or a name. Names come from the first line, from a comment `# global.columns = ...`,
        or from CoNLL-U.
      report: called with a line about the columns, and about a detected scheme.

    Raises:
      InputError: if the file is missing, empty or not UTF-8, a column does not exist, the detected columns do not
        contain words and tags, or no scheme has the prefixes of the tags.
    """
    name = tables.name_of(source)
    if isinstance(source, str):
        read = tagged_tables.read_tagged if is_table(source) else _read_columns
        source = list(read(source, columns, has_tags, report=report))
    if scheme == AUTO:
        scheme = schemes.detect_scheme((sentence.tags for sentence in source if sentence.tags), name)
        report(f"{name}: detected the tagging scheme {scheme} (--tag_scheme).")
    known = (sentence.tags for sentence in source if sentence.tags and not sentence.problem)
    usual = str if scheme == PLAIN else schemes.spelling(itertools.chain.from_iterable(known))
    for sentence in source:
        yield sentence.checked(usual, scheme)


def _read_columns(
    path: str, columns: tuple[str, str], has_tags: bool, report: Callable[[str], None]
) -> Iterator[Sentence]:
    lines = _lines(path)
    groups = list(_groups(lines, has_tags))
    if not groups:
        return
    layout = _layout(path, lines, groups, has_tags, columns)
    tags = f", the tags from column {layout.tag + 1}" if has_tags else ""
    report(f"{path}: reading the words from column {layout.word + 1} of {layout.width}{tags}.")
    if len(groups) == 1 and len(groups[0][1]) > _LONG:
        report(f"Warning: {path}: all {len(groups[0][1])} words are one sentence. Separate sentences by blank lines.")
    for position, (document, rows) in enumerate(groups):
        if layout.is_counted:
            rows = [(number, cells) for number, cells in rows if not _NO_WORD.fullmatch(cells[0])]
        if layout.has_header and not position:
            rows = rows[1:]
        if rows:
            yield _sentence(path, rows, layout, document)


def is_table(path: str) -> bool:
    """Returns True if a file is a table, such as CSV, JSON lines, or TSV with a column of sentence numbers."""
    found = tables.format_of(path)
    if found != ".tsv":
        return found != ""
    header = set(next(iter(_lines(path)), "").casefold().split("\t"))
    return not header.isdisjoint(SENTENCE_COLUMNS) and not header.isdisjoint(WORD_COLUMNS)


Rows = list[tuple[int, list[str]]]  # the line number and the cells of each word of a sentence


def _groups(lines: Sequence[str], has_tags: bool) -> Iterator[tuple[int | None, Rows]]:
    """Yields the index of the document and the rows of each sentence."""
    rows: Rows = []
    document: int | None = None
    filled = [line for line in lines if line.strip(" \t") and not line.startswith(DOCUMENT_START)]
    certain = [line for line in filled if not line.startswith("#")]
    tabs = "\t" in "".join((certain or filled)[:1])
    width = len(_cells(certain[0], tabs)) if certain else 0
    last_cells = {cell for line in certain or filled for cell in line.split()[-1:]}
    is_plain = not any(map(TAG.fullmatch, last_cells - {"O"} or last_cells))
    for number, line in enumerate([*lines, ""], start=1):
        line = line.strip(" ") if tabs else line.strip(" \t")
        if line.startswith(DOCUMENT_START) or not line.strip(" \t"):
            if rows:
                yield document, rows
                rows = []
            if line.startswith(DOCUMENT_START):
                document = 0 if document is None else document + 1
            continue
        cells = _cells(line, tabs)
        # Without entity tags, only the number of columns distinguishes comments from words that begin with "#".
        if line.startswith("#") and not rows:
            is_sentence = tabs and line.startswith("# ") and "\t" not in line
            if is_sentence or _is_comment(line, not certain or len(cells) == width, has_tags, is_plain):
                continue
        rows.append((number, cells))


def _cells(line: str, tabs: bool) -> list[str]:
    return line.rstrip("\t").split("\t") if tabs else _WHITE_SPACE.split(line.strip(" \t"))


def _is_comment(line: str, has_width: bool, has_tags: bool, is_plain: bool) -> bool:
    """Returns True if a line that begins with "#" is a comment, False if it is a word.

    Args:
      line: the line.
      has_width: whether the line has as many columns as other lines.
      has_tags: whether words have tags.
      is_plain: whether the tags are plain. Otherwise, the line of a word ends with an entity tag.
    """
    parts = _WHITE_SPACE.split(line)
    if has_width and (is_plain if has_tags else parts[0] != "#"):
        return False
    shortest = 2 if parts[0] == "#" and not has_width else 3
    return len(parts) >= shortest and not TAG.fullmatch(parts[-1])


def _lines(path: str) -> list[str]:
    return files.lines_of(files.read_text(path, "--data_dir"))


class _Layout(NamedTuple):
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


def _layout(
    path: str, lines: Sequence[str], groups: Sequence[tuple[int | None, Rows]], has_tags: bool, columns: tuple[str, str]
) -> _Layout:
    """Returns the layout of a file. See `read_sentences`."""
    first = groups[0][1][0][1]
    header, width = [cell.casefold() for cell in first], len(first)
    wanted = [name.casefold() for name in columns if not _NUMBER.fullmatch(name)]
    has_header = any(name in header for name in wanted if name) or (
        not {*header}.isdisjoint(_HEADER_WORDS) and not {*header}.isdisjoint(_HEADER_TAGS)
    )
    sentences = [[cells for _, cells in rows] for _, rows in groups]
    if has_header:
        sentences[0] = sentences[0][1:]
    rows = [row for sentence in sentences for row in sentence if len(row) == width]
    # A majority of the sentences decides, so a single bad row does not change the result.
    is_counted = width > 1 + has_tags and 2 * sum(map(_counts_words, sentences)) > len(sentences)
    named = next((line.partition("=")[2] for line in lines if line.startswith(_GLOBAL_COLUMNS)), "").casefold().split()
    names = header if has_header else named or (_CONLL_U if is_counted and width == len(_CONLL_U) else ())

    def index(column: str, flag: str, default: int) -> int:
        if not column:
            return default
        if column.casefold() in names:
            return names.index(column.casefold())
        number = int(column) if _NUMBER.fullmatch(column) else 0
        found = number - 1 if number > 0 else width + number
        if not number or not 0 <= found < width:
            known = f", or {first_of(names)}" if names else ""
            raise InputError(f"{path} has no column {column!r}. Use a number from 1 to {width}{known}.", flag)
        return found

    word, tag = int(is_counted), width - 1
    if has_header:
        word, tag = (
            next((names.index(name) for name in known if name in names), column)
            for known, column in ((_HEADER_WORDS, word), (_HEADER_TAGS, tag))
        )
    elif is_counted and "upos" in names:
        tag = names.index("upos")
    elif is_counted:
        others = range(word + 1, width)
        tag = next((i for i in others if any(row[i] != "O" and TAG.fullmatch(row[i]) for row in rows)), tag)
    elif not columns[1]:
        word, tag = _checked(path, rows, has_tags)
    word = index(columns[0], "--word_column", word)
    is_detected = not columns[0] and width > 1 + has_tags and len(rows) >= _ENOUGH_ROWS
    bad_words = list(filter((_NUMBERS if is_detected else _MISSING).fullmatch, (row[word] for row in rows)))
    if 2 * len(bad_words) > len(rows):
        raise InputError(f"{path}: most words are {bad_words[0]!r} or similar. Add the text, or pass --word_column.")
    tag = index(columns[1], "--tag_column", tag) if has_tags else -1
    needs_value = has_tags and tag < len(names) and names[tag] in _NEED_VALUE
    return _Layout(width, word, tag, is_counted, has_header, needs_value)


def _checked(path: str, rows: Sequence[Sequence[str]], has_tags: bool) -> tuple[int, int]:
    """Returns the first and the last column, for words and tags, or of two columns the one that has tags of entities.

    Raises:
      InputError: if tags are read, and the last column has numbers or more different cells than the words, or only
        another column has tags of entities.
    """
    columns = list(zip(*rows, strict=True))
    entities = [i for i, cells in enumerate(columns) if _are_entity_tags(set(cells))]
    last = len(columns) - 1
    # The word "O" is rare. In plain tags of entities, O is frequent.
    if entities and last not in entities and 10 * columns[-1].count("O") < len(rows):
        if entities == [0] and last == 1:
            return 1, 0
        if has_tags:
            raise InputError(
                f"{path}: column {entities[0] + 1} has tags of entities, but the last column has none. Pass "
                "--tag_column."
            )
    if has_tags and len(rows) >= _ENOUGH_ROWS and len({*columns[-1]}) > 2 * len({*columns[0]}):
        raise InputError(
            f"{path}: the first column has {len({*columns[0]})} different cells, and the last column has "
            f"{len({*columns[-1]})}, so it can't contain the tags. Pass --word_column and --tag_column."
        )
    if has_tags and last > 0 and all(map(_SCORE.fullmatch, columns[-1])):
        raise InputError(f"{path}: the last column has numbers instead of tags. Pass --tag_column.")
    return 0, max(last, 0)


def _are_entity_tags(cells: Set[str]) -> bool:
    """Returns True if all cells are O or tags with a prefix and a type."""
    tags = set(map(schemes.spelling(cells), cells)) - {"O"}
    return any(not tag.endswith("-_") for tag in tags) and all(map(TAG.fullmatch, tags))


def _counts_words(table: Sequence[Sequence[str]]) -> bool:
    """Returns True if the first cells of a sentence's rows are consecutive numbers."""
    numbers = [cells[0] for cells in table if not _NO_WORD.fullmatch(cells[0])]
    start = int(numbers[0]) if numbers and _NUMBER.fullmatch(numbers[0]) else -1
    return start >= 0 and numbers == [str(number) for number in range(start, start + len(numbers))]


def _sentence(path: str, rows: Rows, layout: _Layout, document: int | None) -> Sentence:
    problems = ((number, _problem(cells, layout)) for number, cells in rows)
    line, problem = next(((number, text) for number, text in problems if text), (rows[0][0], ""))
    words, tags = (
        tuple(cells[min(column, len(cells) - 1)] for _, cells in rows) for column in (layout.word, layout.tag)
    )
    lines = tuple(number for number, _ in rows)
    return Sentence(path, words, tags if layout.tag >= 0 else None, lines, document, problem, line)


def _problem(cells: Sequence[str], layout: _Layout) -> str:
    if len(cells) != layout.width:
        return f"the row has {len(cells)} columns instead of {layout.width}. Correct it."
    if layout.needs_value and cells[layout.tag] == "_":
        return "the tag is '_', which means that there is none. Add it, or pass --tag_column."
    is_one = layout.tag == layout.word
    return "the row has one column for the word and the tag. Add a tag to the word." if is_one else ""


def write_predictions(path: str, source: str, sentences: Sequence[Sentence], tags: Sequence[Sequence[str]]) -> None:
    """Writes a copy of a file with the predicted tags as an additional column. The file appears when it is complete.

    Args:
      path: the new file.
      source: the file to copy. If it is a table, only the words of the sentences are written.
      sentences: the sentences of the file. Other lines are copied unchanged.
      tags: the predicted tags of each sentence.
    """
    tagged = [list(zip(s.words, s.lines, row, strict=True)) for s, row in zip(sentences, tags, strict=True)]
    if is_table(source):
        rows = [row for words in tagged for row in (*((word, tag) for word, _, tag in words), ("", ""))]
    else:
        by_line = {line: tag for words in tagged for _, line, tag in words}
        rows = [(line, by_line.get(number, "")) for number, line in enumerate(_lines(source), start=1)]
    with files.replacing(path) as writer:
        for line, tag in rows:
            if tag:
                line = line.rstrip(" \t")
                line += ("\t" if "\t" in line else " ") + tag
            writer.write(line + "\n")
