"""Reads tagged sentences from tables. A row contains lists of words and tags, a text with spans, or a single word.

Character spans may have the format of doccano, Label Studio, Prodigy or spaCy.
"""

import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bert_tf.runtime.errors import InputError
from bert_tf.tasks import tables
from bert_tf.tasks.tagging.schemes import Sentence, tags_of
from bert_tf.text.splitting import BasicTokenizer

# Common column names in public data.
WORD_COLUMNS = ("words", "tokens", "word", "token", "form")
TAG_COLUMNS = ("tags", "ner_tags", "labels", "tag", "label", "ner")
_SPAN_COLUMNS = ("entities", "spans", "annotations")
_TOKENIZER = BasicTokenizer(do_lower_case=False)

_Row = tuple[int, Mapping[str, Any]]  # the line and the values by column


def read_tagged(
    path: str, columns: tuple[str, str], has_tags: bool, report: Callable[[str], None]
) -> Iterator[Sentence]:
    """Yields the sentences of a table.

    Args:
      path: the table; see `tables.read_table`.
      columns: the column of the words or the text, and the column of the tags or spans; "" to detect a column.
      has_tags: whether to read tags.
      report: called with a warning if spans do not match words.

    Raises:
      InputError: if a column is missing, or a row can't be used.
    """
    (word, tag), rows = columns, list[_Row]()
    for row in tables.read_table(path, ()):
        if row.problem:
            raise InputError(f"{row.where}: {row.problem}")
        rows.append((row.line, row.values))
    total = crossing = overlapping = 0
    for line, values in _joined(rows, word):
        where = f"{path}, line {line}"
        words, text = (_value(values, word, known) for known in (WORD_COLUMNS, ("text",)))
        text = text or (values.get("data") or {}).get("text")
        if not isinstance(words, list) and not isinstance(text, str):
            raise InputError(f"{where}: there is no text, no list of words and no column sentence_id. Add one of them.")
        found = _value(values, tag, TAG_COLUMNS + _SPAN_COLUMNS) if has_tags else []
        if not isinstance(found, list):
            raise InputError(f"{where}: there is no list of tags or spans. Pass its column as --tag_column.")
        if isinstance(words, list):
            words, tags = list(map(str, words)), found
            if has_tags and (len(tags) != len(words) or not all(isinstance(tag, str) for tag in tags)):
                raise InputError(f"{where}: the tags {tags!s:.60} are not names, one for each word. Correct the row.")
        else:
            spans = sorted(_spans(found, where))
            words, tags, extended, dropped = _aligned(text, spans)
            total, crossing, overlapping = total + len(spans), crossing + extended, overlapping + dropped
        if words:
            yield Sentence.in_row(path, words, tags if has_tags else None, line)
    if crossing or overlapping:
        report(
            f"Warning: {path}: of {total} spans, {crossing} cross a word and were extended to its ends, and "
            f"{overlapping} overlap another one or have no word, and were left out."
        )


def _value(values: Mapping[str, Any], name: str, known: Sequence[str]) -> Any:
    """Returns the value of the column `name` or, if it is "", of the first known column; None if it is missing.

    Upper and lower case are not distinguished.
    """
    columns = {column.casefold(): column for column in values}
    return next((values[columns[x]] for x in ([name.casefold()] if name else known) if x in columns), None)


def _joined(rows: Sequence[_Row], word: str) -> Iterator[_Row]:
    """Joins rows with one word each to rows with lists. Rows of one sentence have the same sentence number, or none.

    Tables in other formats are not changed.
    """
    first = rows[0][1] if rows else {}
    number = next((name for name in first if "sent" in name.casefold() and name.casefold() != word.casefold()), "")
    if not number or not isinstance(_value(first, word, WORD_COLUMNS), str):
        yield from rows
        return
    numbers = itertools.accumulate((values[number] for _, values in rows), lambda last, cell: cell or last)
    for _, group in itertools.groupby(zip(numbers, rows, strict=True), key=operator.itemgetter(0)):
        members = [row for _, row in group]
        yield members[0][0], {name: [values[name] for _, values in members] for name in first}


def _spans(value: Any, where: str) -> Iterator[tuple[int, int, str]]:
    """Yields the spans in a list of [start, end, type], or of objects of an annotation program."""
    if isinstance(value, dict) and "result" in value:  # Label Studio; the list may also contain relations
        value = [part["value"] for part in value["result"] if "start" in part.get("value", ())]
    if isinstance(value, dict):
        kind = value.get("label", value.get("labels"))
        start, end = (value.get(name, value.get(f"{name}_offset")) for name in ("start", "end"))
        value = [start, end, kind[0] if isinstance(kind, list) and kind else kind]
    if not isinstance(value, list):
        raise InputError(f"{where}: {value!r:.60} is not a span. Use [start, end, type].")
    if len(value) == 3 and type(value[0]) is type(value[1]) is int:
        yield value[0], value[1], str(value[2])
        return
    for part in value:
        yield from _spans(part, where)


def _aligned(text: str, spans: Sequence[tuple[int, int, str]]) -> tuple[list[str], list[str], int, int]:
    """Returns the words of a text, the tags, the number of extended spans, and the number of omitted spans."""
    places = [(token[0].start, token[-1].end) for token in _TOKENIZER.tokenize_with_origins(text)]
    entities, extended, last = [], 0, -1
    for start, end, kind in spans:
        inside = [number for number, (first, stop) in enumerate(places) if first < end and stop > start]
        if inside and inside[0] > last:
            extended += text[start:end].strip() != text[places[inside[0]][0] : places[inside[-1]][1]]
            last = inside[-1]
            entities.append((kind, inside[0], last))
    words = [text[start:end] for start, end in places]
    return words, tags_of(entities, len(words), "iob2"), extended, len(spans) - len(entities)
