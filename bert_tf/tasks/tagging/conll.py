"""Tagged sentences in the CoNLL format: a word and its tag on each line, and blank lines between sentences.

Entities are spans of words with a type. Three schemes of tags can be read and written:

    words   Alex  is  in  Los    Angeles
    IOB2    B-PER O   O   B-LOC  I-LOC
    IOB1    I-PER O   O   I-LOC  I-LOC     (B- only directly after an entity of the same type)
    BIOES   S-PER O   O   B-LOC  E-LOC
"""

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from seqeval.metrics.sequence_labeling import get_entities

from bert_tf.runtime import files
from bert_tf.tasks.tables import Source

DOCUMENT_START = "-DOCSTART-"
# The type, the first word and the last word of an entity.
Entity = tuple[str, int, int]

TAG = re.compile(r"O|[BIES]-.+")
# str.split can't be used, because words may contain other characters that are white space in Unicode.
_WHITE_SPACE = re.compile(r"[ \t]+")


@dataclasses.dataclass(frozen=True)
class Sentence:
    """Words with their tags.

    Attributes:
      path: the file; "" for a sentence in memory.
      words: the words, as written in the file.
      tags: the tags, as written in the file; None if tags were not read.
      lines: the line number of each word, counted from 1.
      document: the number of the document, if the file marks the starts of documents; None otherwise.
      problem: the reason why the sentence can't be used; "" if it can be used.
      line: the line of the problem, or else the first line.
      number: the number of a sentence in memory, counted from 0.
    """

    path: str = dataclasses.field(repr=False)  # the same sentences in another place have the same repr
    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    lines: tuple[int, ...]
    document: int | None
    problem: str
    line: int
    number: int = dataclasses.field(default=0, repr=False)

    @property
    def where(self) -> str:
        """File and line, or the number of the sentence, for messages."""
        return f"{self.path}, line {self.line}" if self.path else f"sentence {self.number}"

    def entities(self) -> list[Entity]:
        """Returns the entities of the tags, in any scheme; an entity may begin with I-."""
        return get_entities(list(self.tags))


def read_sentences(source: Source, has_tags: bool) -> Iterator[Sentence]:
    """Yields the sentences of a file, or of examples in memory, which have `words` and `tags`.

    The first column of a file contains the word, and the last one the tag. If the first line of words contains a tab,
    columns are separated by tabs, otherwise by spaces and tabs. A line of white space ends a sentence, and a line that
    begins with -DOCSTART- starts a document. Comments before a sentence ("# id 17 ...") are skipped. Examples in memory
    get the line numbers of a file with a blank line after each sentence.

    Args:
      source: the file or the examples.
      has_tags: whether the last column is read as tags.

    Raises:
      InputError: if the file is missing, empty or not UTF-8.
    """
    if not isinstance(source, str):
        start = 1
        for number, example in enumerate(source):
            cells = list(zip(example["words"], example["tags"], strict=True))
            yield _sentence("", list(enumerate(cells, start)), 2, has_tags, None, number)
            start += len(cells) + 1
        return
    path, lines = source, _lines(source)
    document, width, tabs = None, 0, False
    rows: list[tuple[int, list[str]]] = []  # line number and cells of each word of the current sentence
    certain = next((line for line in lines if line.strip(" \t") and not line.startswith(("#", DOCUMENT_START))), "")
    for number, line in enumerate([*lines, ""], start=1):
        line = line.strip(" ") if tabs else line.strip(" \t")
        if line.startswith(DOCUMENT_START) or not line.strip(" \t"):
            if rows:
                yield _sentence(path, rows, width, has_tags, document)
                rows = []
            if line.startswith(DOCUMENT_START):
                document = 0 if document is None else document + 1
            continue
        tabs = tabs if width else "\t" in line
        cells = _cells(line, tabs)
        # Without tags, only the number of columns tells a comment from a word that begins with "#".
        may_be_word = not has_tags and len(cells) == (width or len(_cells(certain, tabs)))
        if not rows and _is_comment(line, may_be_word):
            continue
        width = width or len(cells)
        rows.append((number, cells))


def _cells(line: str, tabs: bool) -> list[str]:
    return line.rstrip("\t").split("\t") if tabs else _WHITE_SPACE.split(line.strip(" \t"))


def _is_comment(line: str, may_be_word: bool) -> bool:
    """Returns whether a line is a comment about the following sentence, and not a word with its columns.

    A word may be "#", with a tag at the end of its line, or begin with it, if the line may be that of a word.
    """
    parts = _WHITE_SPACE.split(line)
    is_marked = parts[0] == "#" or (parts[0].startswith("#") and not may_be_word)
    return is_marked and len(parts) > 2 and not TAG.fullmatch(parts[-1])


def _lines(path: str) -> list[str]:
    text = files.read_text(path, "--data_dir")
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def _sentence(
    path: str,
    rows: Sequence[tuple[int, Sequence[str]]],
    width: int,
    has_tags: bool,
    document: int | None,
    number: int = 0,
) -> Sentence:
    problems = ((number, _problem(cells, width, has_tags)) for number, cells in rows)
    line, problem = next(((number, text) for number, text in problems if text), (rows[0][0], ""))
    return Sentence(
        path=path,
        words=tuple(cells[0] for _, cells in rows),
        tags=tuple(cells[-1] for _, cells in rows) if has_tags else None,
        lines=tuple(number for number, _ in rows),
        document=document,
        problem=problem,
        line=line,
        number=number,
    )


def _problem(cells: Sequence[str], width: int, has_tags: bool) -> str:
    if len(cells) != width:
        return f"the row has {len(cells)} columns, the rows before have {width}. Correct it."
    if not cells[0].strip():
        return "the word is empty. Add it."
    if has_tags and width < 2:
        return "the row has one column. Add a tag to the word."
    if has_tags and not TAG.fullmatch(cells[-1]):
        return f"the tag is {cells[-1]!r}. Use O, or B-, I-, E- or S- followed by a type."
    return ""


def detect_scheme(sentences: Iterable[Sentence]) -> str:
    """Returns the scheme of tags: "iob2", "iob1" or "bioes".

    If entities begin with I-, the scheme is IOB1 provided that B- occurs only where IOB1 requires it. Otherwise it is
    IOB2 with mistakes.
    """
    begins = {"B": False, "I": False, "B after other": False}
    for sentence in sentences:
        if any(tag[0] in "ES" for tag in sentence.tags):
            return "bioes"
        last: Entity | None = None
        for entity in sentence.entities():
            kind, start, _ = entity
            prefix = sentence.tags[start][0]
            begins[prefix] = True
            joined = last is not None and last[0] == kind and last[2] == start - 1
            begins["B after other"] |= prefix == "B" and not joined
            last = entity
    return "iob1" if begins["I"] and not begins["B after other"] else "iob2"


def tags_of(entities: Iterable[Entity], length: int, scheme: str) -> list[str]:
    """Returns the tags of a sentence's entities.

    Args:
      entities: the entities in order, without overlaps.
      length: the number of words in the sentence.
      scheme: "iob2", "iob1" or "bioes".
    """
    tags = ["O"] * length
    last_kind, last_end = "", -2
    for kind, start, end in entities:
        tags[start : end + 1] = [f"I-{kind}"] * (end + 1 - start)
        if scheme != "iob1" or (last_kind == kind and last_end == start - 1):
            tags[start] = f"B-{kind}"
        if scheme == "bioes":
            tags[end] = f"{'S' if start == end else 'E'}-{kind}"
        last_kind, last_end = kind, end
    return tags


def write_predictions(path: str, source: str, tags: Mapping[int, str]) -> None:
    """Writes a copy of a file with the predicted tags as an additional column; an incomplete file is never left.

    Args:
      path: the new file.
      source: the file that is copied.
      tags: line number -> tag that is appended to the line; other lines are copied unchanged.
    """
    with files.replacing(path) as writer:
        for number, line in enumerate(_lines(source), start=1):
            if number in tags:
                line = line.rstrip(" \t")
                line += ("\t" if "\t" in line else " ") + tags[number]
            writer.write(line + "\n")
