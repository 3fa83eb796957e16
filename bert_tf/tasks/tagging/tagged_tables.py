"""Reads tagged sentences from tables. A row contains lists of words and tags, a text with spans, or a single word.

Columns are found by the names in this module and in `annotations`, which docs/howto/ner.md lists. Other columns have no
effect.
"""

import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bert_tf.runtime.errors import InputError
from bert_tf.tasks import example_rows, tables
from bert_tf.tasks.tables import TableFile
from bert_tf.tasks.tagging import annotations
from bert_tf.tasks.tagging.annotations import Span
from bert_tf.tasks.tagging.schemes import Sentence, tags_of
from bert_tf.text.splitting import BasicTokenizer

# Column names. Upper and lower case are not distinguished.
WORD_COLUMNS = ("words", "tokens", "word", "token", "form")
TAG_COLUMNS = ("tags", "ner_tags", "labels", "tag", "label", "ner")
TEXT = "text"
SENTENCE_COLUMNS = (
    *("sentence #", "sentence_id", "sent_id", "sentence_idx", "sent_idx", "sentence_number", "sentence_num"),
    *("sentence_no", "sentence_nr", "sentence_index", "sentenceid", "sentid", "sentence id", "sentence"),
)
_DOCUMENT_COLUMNS = (
    *("doc_id", "document_id", "doc", "document", "docid", "doc_idx", "file", "file_id", "file_name", "filename"),
    *("article", "article_id", "abstract_id", "pmid", "text_id", "chapter", "paragraph", "paragraph_id"),
)
_TOKENIZER = BasicTokenizer(do_lower_case=False)

Row = tuple[int, Mapping[str, Any]]  # the line and the values by column


def read_tagged(
    file: TableFile, columns: tuple[str, str], has_tags: bool, report: Callable[[str], None]
) -> Iterator[Sentence]:
    """Yields the sentences of a table. With tags, rows that annotators skipped or rejected are omitted and counted.

    Args:
      file: the table; see `tables.read_table`.
      columns: the column of the words or the text, and the column of the tags or spans; "" to detect a column.
      has_tags: whether to read tags.
      report: called with a warning if rows are omitted, or spans do not match words.

    Raises:
      InputError: if the file can't be read.
    """
    rows = list[Row]()
    for row in tables.read_table(file, ()):
        if row.problem:
            yield Sentence.unusable(file.path, row.problem, row.line)
        else:
            rows.append((row.line, row.values))
    yield from sentences_of(rows, file.path, columns, has_tags, report)


def sentences_of(
    rows: Sequence[Row], path: str, columns: tuple[str, str], has_tags: bool, report: Callable[[str], None]
) -> Iterator[Sentence]:
    """Yields the sentences of the rows of a table. A row that can't be used becomes a sentence with a `problem`.

    Args:
      rows: the numbers and the values of the rows.
      path: the name of the table, for messages.
      columns: see `read_tagged`.
      has_tags: see `read_tagged`.
      report: see `read_tagged`.
    """
    word, tag = columns
    reader = annotations.SpanReader(tag, word or TEXT)
    total = crossing = overlapping = omitted = 0
    for line, values in _joined(rows, word):
        where = f"{path}, line {line}"
        try:
            words, text = _value(values, word, WORD_COLUMNS), _text(values, word)
            is_list = isinstance(words, list) and all(isinstance(entry, str | int | float) for entry in words)
            if not is_list and not isinstance(text, str):
                raise InputError(
                    f"{where}: there is no text, no list of words and no column sentence_id. Add one of them."
                )
            if has_tags and example_rows.is_rejected(values, (word, tag)):
                omitted += 1
                continue
            tags: list[str] | None = None
            marks = _value(values, tag, TAG_COLUMNS)
            is_tagged = isinstance(marks, list) and bool(marks) and all(isinstance(mark, str | int) for mark in marks)
            if is_list and (is_tagged or not isinstance(text, str) or not reader.has_spans(values)):
                words = list(map(str, words))
                tags = _tags(values, tag, len(words), where) if has_tags else None
            else:
                spans = reader.spans(values, text, where) if has_tags else []
                if spans is None:
                    omitted += 1
                    continue
                words, tags, extended, dropped = _aligned(text, spans)
                total, crossing, overlapping = total + len(spans), crossing + extended, overlapping + dropped
        except InputError as error:
            yield Sentence.unusable(path, str(error).removeprefix(f"{where}: "), line)
            continue
        if words:
            yield Sentence.in_row(path, words, tags if has_tags else None, line)
    if omitted:
        report(f"Warning: {path}: {omitted} rows were left out, because they are skipped, rejected or not annotated.")
    if crossing or overlapping:
        report(
            f"Warning: {path}: {crossing} of {total} spans cover a part of a word, and were extended to the word. "
            f"{overlapping} spans overlap another span or have no word, and were left out."
        )


def _text(values: Mapping[str, Any], column: str) -> Any:
    """Returns the text of a row. The column "data" has an object with texts (Label Studio) or a text (doccano 1.5)."""
    data = values.get("data")
    text = _value(values, column, (TEXT,) if isinstance(data, dict) else (TEXT, "data"))
    return _value(data, column, (TEXT,)) if text is None and isinstance(data, dict) else text


def _tags(values: Mapping[str, Any], column: str, length: int, where: str) -> list[str]:
    tags = _value(values, column, TAG_COLUMNS)
    if not isinstance(tags, list):
        raise InputError(f"{where}: there is no list of tags or spans. Pass the column as --tag_column.")
    lists = [name for name in TAG_COLUMNS if isinstance(x := _value(values, name, ()), list) and len(x) == length]
    if not column and len(lists) > 1:
        raise InputError(f"{where}: there are tags in {' and '.join(lists)}. Pass one of them as --tag_column.")
    is_name = [isinstance(x, str) and not x.startswith(("['", '["')) and (column or not x.isdigit()) for x in tags]
    if len(tags) != length:
        raise InputError(f"{where}: there are {length} words, but {len(tags)} tags. Write one tag for each word.")
    if not all(is_name):
        raise InputError(f"{where}: the tags {tags!s:.60} are not names. Write names instead of numbers.")
    return tags


def _value(values: Mapping[str, Any], name: str, known: Sequence[str]) -> Any:
    """Returns the value of the column `name` or, if it is "", of the first known column; None if it is missing.

    Upper and lower case are not distinguished.
    """
    columns = {column.casefold(): column for column in values}
    return next((values[columns[x]] for x in ([name.casefold()] if name else known) if x in columns), None)


def _joined(rows: Sequence[Row], word: str) -> Iterator[Row]:
    """Joins rows with one word each to rows with lists.

    Neighbouring rows of one sentence have the same sentence number and the same document. An empty cell or NaN has the
    value of the row above. Tables in other formats are not changed.
    """
    first = rows[0][1] if rows else {}
    columns = {name.casefold(): name for name in first if name.casefold() != word.casefold()}
    numbers = [columns[name] for name in SENTENCE_COLUMNS if name in columns]
    if not numbers or not isinstance(_value(first, word, WORD_COLUMNS), str):
        yield from rows
        return
    keys = [numbers[0], *(columns[name] for name in _DOCUMENT_COLUMNS if name in columns)]
    filled = (
        itertools.accumulate(
            [values.get(key) for _, values in rows], lambda last, x: last if x in ("", None) or x != x else x
        )
        for key in keys
    )
    numbered = zip(zip(*filled, strict=True), rows, strict=True)
    for _, group in itertools.groupby(numbered, key=operator.itemgetter(0)):
        members = [row for _, row in group]
        yield members[0][0], {name: [values.get(name) for _, values in members] for name in first}


def _aligned(text: str, spans: Sequence[Span]) -> tuple[list[str], list[str], int, int]:
    """Returns the words of a text, the tags, the number of extended spans, and the number of omitted spans.

    Of spans that overlap, the first one is used.
    """
    offsets = [(token[0].start, token[-1].end) for token in _TOKENIZER.tokenize_with_origins(text)]
    entities, extended, used = [], 0, set[int]()
    for start, end, kind in spans:
        inside = [number for number, (first, stop) in enumerate(offsets) if first < end and stop > start]
        if inside and used.isdisjoint(inside):
            extended += text[start:end].strip() != text[offsets[inside[0]][0] : offsets[inside[-1]][1]]
            used.update(inside)
            entities.append((kind, inside[0], inside[-1]))
    words = [text[start:end] for start, end in offsets]
    tags = tags_of(sorted(entities, key=operator.itemgetter(1)), len(words), "iob2")
    return words, tags, extended, len(spans) - len(entities)
