"""Reads and writes tagged sentences in columns: a word and its tag on each line, blank lines between sentences."""

import itertools
import re
from collections.abc import Callable, Iterator, Sequence

from bert_tf.runtime import files
from bert_tf.runtime.errors import InputError
from bert_tf.tasks import example_rows, tables
from bert_tf.tasks.tables import TableFile
from bert_tf.tasks.tagging import layouts, schemes, tagged_tables
from bert_tf.tasks.tagging.layouts import Layout
from bert_tf.tasks.tagging.schemes import AUTO, PLAIN, TAG, Sentence
from bert_tf.tasks.tagging.tagged_tables import SENTENCE_COLUMNS, WORD_COLUMNS

DOCUMENT_START = "-DOCSTART-"
# Column separators. str.split can't be used, because words may contain other Unicode white space.
_WHITE_SPACE = re.compile(r"[ \t]+")
# Sentences have fewer words.
_LONG = 200
_GLOBAL_COLUMNS = "# global.columns"
# The columns of words and of tags; "" to detect them.
DETECTED = ("", "")


def read_sentences(
    source: str | TableFile | Sequence[Sentence],
    has_tags: bool,
    scheme: str = "iob2",
    columns: tuple[str, str] = DETECTED,
    report: Callable[[str], None] = lambda line: None,
    on_bad_row: str = "error",
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
      on_bad_row: with "skip", a row of a table without usable words becomes a sentence without words and with a
        `problem`.

    Raises:
      InputError: if the file is missing, empty or not UTF-8, a column does not exist, the detected columns do not
        contain words and tags, a row has no usable words, or no scheme has the prefixes of the tags.
    """
    file = tables.open_table(source) if isinstance(source, str) else source
    if isinstance(file, TableFile):
        read = tagged_tables.read_tagged if _is_table(file) else _read_columns
        name, sentences = file.path, list(read(file, columns, has_tags, report=report))
        unusable = next((sentence for sentence in sentences if not sentence.words), None)
        if unusable and on_bad_row != "skip":
            raise InputError(f"{unusable.where}: {unusable.problem}")
    else:
        name, sentences = example_rows.name_of(file), file
    if scheme == AUTO:
        scheme = schemes.detect_scheme((sentence.tags for sentence in sentences if sentence.tags), name)
        report(f"{name}: detected the tagging scheme {scheme} (--tag_scheme).")
    known = (sentence.tags for sentence in sentences if sentence.tags and not sentence.problem)
    usual = str if scheme == PLAIN else schemes.spelling(itertools.chain.from_iterable(known))
    for sentence in sentences:
        yield sentence.checked(usual, scheme)


def _read_columns(
    file: TableFile, columns: tuple[str, str], has_tags: bool, report: Callable[[str], None]
) -> Iterator[Sentence]:
    path, lines = file.path, files.lines_of(file.text)
    groups = list(_groups(lines, has_tags))
    if not groups:
        return
    named = next((line.partition("=")[2] for line in lines if line.startswith(_GLOBAL_COLUMNS)), "").casefold().split()
    sentences = [[cells for _, cells in rows] for _, rows in groups]
    layout = layouts.find_layout(path, sentences, named, has_tags, columns)
    tags = f", the tags from column {layout.tag + 1}" if has_tags else ""
    report(f"{path}: reading the words from column {layout.word + 1} of {layout.width}{tags}.")
    if len(groups) == 1 and len(groups[0][1]) > _LONG:
        report(f"Warning: {path}: all {len(groups[0][1])} words are one sentence. Separate sentences by blank lines.")
    for position, (document, rows) in enumerate(groups):
        if layout.is_counted:
            rows = [(number, cells) for number, cells in rows if not layouts.NO_WORD.fullmatch(cells[0])]
        if layout.has_header and not position:
            rows = rows[1:]
        if rows:
            yield _sentence(path, rows, layout, document)


def _is_table(file: TableFile) -> bool:
    """Returns True if a file is a table, such as CSV, JSON lines, or TSV with a column of sentence numbers."""
    if file.form != ".tsv":
        return file.form != ""
    header = set(files.lines_of(file.text)[0].casefold().split("\t"))
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


def _sentence(path: str, rows: Rows, layout: Layout, document: int | None) -> Sentence:
    problems = ((number, _problem(cells, layout)) for number, cells in rows)
    line, problem = next(((number, text) for number, text in problems if text), (rows[0][0], ""))
    words, tags = (
        tuple(cells[min(column, len(cells) - 1)] for _, cells in rows) for column in (layout.word, layout.tag)
    )
    lines = tuple(number for number, _ in rows)
    return Sentence(path, words, tags if layout.tag >= 0 else None, lines, document, problem, line)


def _problem(cells: Sequence[str], layout: Layout) -> str:
    if len(cells) != layout.width:
        return f"the row has {len(cells)} columns instead of {layout.width}. Correct it."
    if layout.needs_value and cells[layout.tag] == "_":
        return "the tag is '_', which means that there is none. Add it, or pass --tag_column."
    is_one = layout.tag == layout.word
    return "the row has one column for the word and the tag. Add a tag to the word." if is_one else ""


def write_predictions(
    path: str, source: TableFile, sentences: Sequence[Sentence], tags: Sequence[Sequence[str]]
) -> None:
    """Writes a copy of a file with the predicted tags as an additional column. The file appears when it is complete.

    Args:
      path: the new file.
      source: the file to copy. If it is a table, only the words of the sentences are written.
      sentences: the sentences of the file. Other lines are copied unchanged.
      tags: the predicted tags of each sentence.
    """
    tagged = [list(zip(s.words, s.lines, row, strict=True)) for s, row in zip(sentences, tags, strict=True)]
    if _is_table(source):
        rows = [row for words in tagged for row in (*((word, tag) for word, _, tag in words), ("", ""))]
    else:
        by_line = {line: tag for words in tagged for _, line, tag in words}
        rows = [(line, by_line.get(number, "")) for number, line in enumerate(files.lines_of(source.text), start=1)]
    with files.replacing(path) as writer:
        for line, tag in rows:
            if tag:
                line = line.rstrip(" \t")
                line += ("\t" if "\t" in line else " ") + tag
            writer.write(line + "\n")
