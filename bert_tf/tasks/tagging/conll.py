"""Tagged sentences in columns: a word and its tag on each line, and blank lines between sentences."""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from bert_tf.runtime import files
from bert_tf.runtime.files import InputError
from bert_tf.tasks import tables
from bert_tf.tasks.tables import Source
from bert_tf.tasks.tagging import schemes, tagged_tables
from bert_tf.tasks.tagging.schemes import PLAIN, TAG, Entity, entities_of

DOCUMENT_START = "-DOCSTART-"
# str.split can't be used, because words may contain other Unicode white space.
_WHITE_SPACE = re.compile(r"[ \t]+")
_NUMBER = re.compile(r"-?\d+")
# The number of a CoNLL-U line for several words (1-2), or for a word that is not in the text (8.1).
_NO_WORD = re.compile(r"\d+[-.]\d+")
_GLOBAL_COLUMNS = "# global.columns"
_CONLL_U = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")


@dataclasses.dataclass(frozen=True)
class Columns:
    """The columns of a file: their 1-based numbers (or negative numbers from the end), or their names; "" to detect.

    A name is from the first line, from CoNLL-U's columns, or from a comment `# global.columns = ...`.
    """

    word: str = ""
    tag: str = ""


DETECTED = Columns()


@dataclasses.dataclass(frozen=True)
class Sentence:
    """Words with their tags.

    Attributes:
      path: the file; "" for a sentence in memory.
      words: the words, as written in the file.
      tags: the tags in their usual spelling (see `schemes.spelling`); None if tags were not read.
      lines: the 1-based line number of each word.
      document: the index of the document, if the file marks the starts of documents; None otherwise.
      problem: the reason why the sentence can't be used; "" if it can.
      line: the line of the problem, or else the first line.
      number: the index of a sentence in memory.
      is_plain: whether the tags are plain.
    """

    path: str = dataclasses.field(repr=False)  # excluded, so a copy of the file has the same repr
    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    lines: tuple[int, ...]
    document: int | None
    problem: str
    line: int
    number: int = dataclasses.field(default=0, repr=False)
    is_plain: bool = dataclasses.field(default=False, repr=False)

    @property
    def where(self) -> str:
        """File and line, or the index of the sentence, for messages."""
        return f"{self.path}, line {self.line}" if self.path else f"sentence {self.number}"

    def entities(self) -> list[Entity]:
        """Returns the entities of the tags, in any scheme. An entity may begin with I-."""
        return entities_of(self.tags, self.is_plain)


def read_sentences(
    source: Source,
    has_tags: bool,
    scheme: str = "iob2",
    columns: Columns = DETECTED,
    report: Callable[[str], None] = lambda line: None,
) -> Iterator[Sentence]:
    """Yields the sentences of a file, or of examples in memory, which have `words` and `tags`.

    If the first line of words contains a tab, columns are separated by tabs, otherwise by spaces and tabs. A line of
    white space ends a sentence, and a line that begins with -DOCSTART- starts a document. Comments before a sentence
    ("# id 17 ...") are skipped. Examples in memory get the line numbers of a file with a blank line after each example.

    Args:
      source: the file or the examples.
      has_tags: whether to read tags.
      scheme: the tagging scheme. Other tags are a problem of their sentence.
      columns: the columns of the file. By default the first column has the words, and the last one the tags. If the
        first column counts the words, the second one has the words. The tags are then in CoNLL-U's column "upos", or
        else in the first column with entity tags (in GermEval, the outer ones), or else in the last column.
      report: is called with a line about the columns.

    Raises:
      InputError: if the file is missing, empty or not UTF-8, or has no such column.
    """
    is_plain = scheme == PLAIN
    path = ""
    if isinstance(source, str) and is_table(source):
        path = source
        source = list(tagged_tables.read_tagged(path, columns.word, columns.tag, has_tags, report))
    if not isinstance(source, str):
        start = 1
        usual = str if is_plain else schemes.spelling(tag for example in source for tag in example["tags"])
        for number, example in enumerate(source):
            cells = list(zip(example["words"], map(usual, example["tags"]), strict=True))
            sentence = _sentence(path, list(enumerate(cells, start)), 2, (0, 1), has_tags, is_plain, None, number)
            yield dataclasses.replace(sentence, line=example.get("line", sentence.line))
            start += len(cells) + 1
        return
    lines = _lines(source)
    groups = list(_groups(lines, has_tags, is_plain))
    if not groups:
        return
    layout = _layout(source, lines, groups, has_tags, columns)
    tags = f", the tags from column {layout.tag + 1}" if has_tags else ""
    report(f"{source}: reading the words from column {layout.word + 1} of {layout.width}{tags}.")
    read = [cells[layout.tag] for _, rows in groups for _, cells in rows if len(cells) == layout.width]
    usual = schemes.spelling(read) if has_tags and not is_plain else str
    for position, (document, rows) in enumerate(groups):
        if layout.is_counted:
            rows = [(number, cells) for number, cells in rows if not _NO_WORD.fullmatch(cells[0])]
        if layout.has_header and not position:
            rows = rows[1:]
        for _, cells in rows if has_tags else ():
            cells[min(layout.tag, len(cells) - 1)] = usual(cells[min(layout.tag, len(cells) - 1)])
        if rows:
            yield _sentence(source, rows, layout.width, (layout.word, layout.tag), has_tags, is_plain, document)


def is_table(path: str) -> bool:
    """Returns whether a file is a table with another format than columns of words and tags."""
    return tables.format_of(path) not in ("", ".tsv")


Rows = list[tuple[int, list[str]]]  # the line number and the cells of each word of a sentence


def _groups(lines: Sequence[str], has_tags: bool, is_plain: bool) -> Iterator[tuple[int | None, Rows]]:
    """Yields the index of the document and the rows of each sentence."""
    rows: Rows = []
    document, width = None, 0
    filled = [line for line in lines if line.strip(" \t") and not line.startswith(DOCUMENT_START)]
    certain = next((line for line in filled if not line.startswith("#")), "")
    tabs = "\t" in (certain or "".join(filled[:1]))
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
        # Without entity tags, only the number of columns distinguishes a comment from a word that begins with "#".
        has_width = not certain or len(cells) == (width or len(_cells(certain, tabs)))
        is_comment = tabs and line.startswith("# ") and "\t" not in line
        is_comment |= line.startswith("#") and _is_comment(line, has_width, has_tags, is_plain)
        if is_comment and not rows:
            continue
        width = width or len(cells)
        rows.append((number, cells))


def _cells(line: str, tabs: bool) -> list[str]:
    return line.rstrip("\t").split("\t") if tabs else _WHITE_SPACE.split(line.strip(" \t"))


def _is_comment(line: str, has_width: bool, has_tags: bool, is_plain: bool) -> bool:
    """Returns whether a line that begins with "#" is a comment about the following sentence (otherwise it is a word).

    Args:
      line: the line.
      has_width: whether it has as many columns as other lines.
      has_tags: whether words have tags.
      is_plain: whether the tags are plain. Otherwise a word's line ends with an entity tag.
    """
    parts = _WHITE_SPACE.split(line)
    if has_width and (is_plain if has_tags else parts[0] != "#"):
        return False
    shortest = 2 if parts[0] == "#" and not has_width else 3
    return len(parts) >= shortest and not TAG.fullmatch(parts[-1])


def _lines(path: str) -> list[str]:
    text = files.read_text(path, "--data_dir")
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


class _Layout(NamedTuple):
    """The layout of a file.

    Attributes:
      width: the number of columns.
      word: the index of the words' column.
      tag: the index of the tags' column; -1 if tags are not read.
      is_counted: whether the first column counts the words of each sentence.
      has_header: whether the first row has the names of the columns.
    """

    width: int
    word: int
    tag: int
    is_counted: bool
    has_header: bool


def _layout(
    path: str, lines: Sequence[str], groups: Sequence[tuple[int | None, Rows]], has_tags: bool, columns: Columns
) -> _Layout:
    """Returns the layout of a file. See `read_sentences`."""
    first = groups[0][1][0][1]
    header, width = [cell.casefold() for cell in first], len(first)
    wanted = [name.casefold() for name in (columns.word, columns.tag) if not _NUMBER.fullmatch(name)]
    has_header = any(name in header for name in wanted if name)
    tables = [[cells for _, cells in rows] for _, rows in groups]
    if has_header:
        tables[0] = tables[0][1:]
    # A majority of the sentences decides, so a bad row does not turn the numbers into words.
    is_counted = width > 1 + has_tags and 2 * sum(map(_counts_words, tables)) > len(tables)
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
            known = f", or {', '.join(names)}" if names else ""
            raise InputError(f"{path} has no column {column!r}. Use a number from 1 to {width}{known}.", flag)
        return found

    word = index(columns.word, "--word_column", int(is_counted))
    tag = width - 1
    if is_counted and "upos" in names:
        tag = names.index("upos")
    elif is_counted:
        rows = [row for table in tables for row in table if len(row) == width]
        others = range(word + 1, width)
        tag = next((i for i in others if any(row[i] != "O" and TAG.fullmatch(row[i]) for row in rows)), tag)
    return _Layout(width, word, index(columns.tag, "--tag_column", tag) if has_tags else -1, is_counted, has_header)


def _counts_words(table: Sequence[Sequence[str]]) -> bool:
    """Returns whether the first cells of a sentence's rows are numbers in order."""
    numbers = [cells[0] for cells in table if not _NO_WORD.fullmatch(cells[0])]
    start = int(numbers[0]) if numbers and _NUMBER.fullmatch(numbers[0]) else -1
    return start >= 0 and numbers == [str(number) for number in range(start, start + len(numbers))]


def _sentence(
    path: str,
    rows: Sequence[tuple[int, Sequence[str]]],
    width: int,
    places: tuple[int, int],
    has_tags: bool,
    is_plain: bool,
    document: int | None,
    number: int = 0,
) -> Sentence:
    word, tag = places if has_tags else (places[0], -1)
    problems = ((number, _problem(cells, width, word, tag, is_plain)) for number, cells in rows)
    line, problem = next(((number, text) for number, text in problems if text), (rows[0][0], ""))
    return Sentence(
        path=path,
        words=tuple(cells[min(word, len(cells) - 1)] for _, cells in rows),
        tags=tuple(cells[min(tag, len(cells) - 1)] for _, cells in rows) if has_tags else None,
        lines=tuple(number for number, _ in rows),
        document=document,
        problem=problem,
        line=line,
        number=number,
        is_plain=is_plain,
    )


def _problem(cells: Sequence[str], width: int, word: int, tag: int, is_plain: bool) -> str:
    if len(cells) != width:
        return f"the row has {len(cells)} columns instead of {width}. Correct it."
    if not cells[word].strip():
        return "the word is empty. Add it."
    if tag == word:
        return "the row has one column for the word and the tag. Add a tag to the word."
    if tag >= 0 and not (cells[tag].strip() if is_plain else TAG.fullmatch(cells[tag])):
        return (
            f"the tag is {cells[tag]!r}. Use O, or B-, I-, E-, S-, L-, U-, M- or W- followed by a type, or pass the "
            "tags' column (--tag_column) or scheme (--tag_scheme)."
        )
    return ""


def write_predictions(path: str, source: str, tags: Mapping[int, str]) -> None:
    """Writes a copy of a file with the predicted tags as an additional column, completely or not at all.

    Args:
      path: the new file.
      source: the file to copy. From a table, only the words are written.
      tags: maps line numbers to the tags to append. Other lines are copied unchanged.
    """
    sentences = read_sentences(source, has_tags=False) if is_table(source) else ()
    lines = [word for sentence in sentences for word in (*sentence.words, "")] or _lines(source)
    with files.replacing(path) as writer:
        for number, line in enumerate(lines, start=1):
            if number in tags:
                line = line.rstrip(" \t")
                line += ("\t" if "\t" in line else " ") + tags[number]
            writer.write(line + "\n")
