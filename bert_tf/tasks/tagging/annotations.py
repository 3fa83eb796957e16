"""Reads the character spans of annotation programs: doccano, Label Studio, Prodigy and spaCy.

Each form of an object is a struct with the fields that are used, and a list of fields without effect. An object with
any other field is refused, because the field may decide whether the span counts. A row may have further columns.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple, Self

import msgspec

from bert_tf.runtime import errors
from bert_tf.runtime.errors import InputError

# Columns with lists of spans.
SPAN_COLUMNS = ("label", "labels", "entities", "spans", "annotations", "completions", "tags", "ner_tags")
# The columns of Label Studio that contain annotations with regions.
_STUDIO_COLUMNS = ("annotations", "completions")
# Label Studio's results that are not spans, such as the class of a text.
_OTHER_RESULTS = ("choices", "datetime", "number", "pairwise", "ranker", "rating", "relation", "taxonomy", "textarea")


class Span(NamedTuple):
    """An entity in a text: the first character, the last character plus 1, and the type."""

    start: int
    end: int
    kind: str


class _Form(msgspec.Struct, forbid_unknown_fields=True):
    """An object in the file of an annotation program.

    Attributes:
      names: maps the names of fields in the file to names in this class, if they differ.
      without_effect: the fields that are ignored.
    """

    names: ClassVar[dict[str, str]] = {}
    without_effect: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def of(cls, value: Any, where: str) -> Self:
        """Returns the object.

        Raises:
          InputError: if the value is not an object, or a field is unknown, missing or has the wrong type.
        """
        if not isinstance(value, dict):
            raise InputError(f"{where}: {value!r:.60} is not an object. Export complete annotations.")
        used = [(cls.names.get(name, name), x) for name, x in value.items() if name not in cls.without_effect]
        if len(dict(used)) < len(used):
            raise InputError(f"{where}: {value!s:.60} has a field under two names. Remove one of them.")
        try:
            return errors.check(dict(used), cls, f"{where}: {value!s:.60}")
        except InputError as error:
            raise InputError(f"{error} Correct or remove it, or convert the file.", where) from None


class _Span(_Form):
    """A span of Prodigy or spaCy, or with the names of doccano or Label Studio.

    `text` repeats the characters of the span. `user` is the number of the annotator.
    """

    start: int
    end: int
    label: Annotated[str, msgspec.Meta(pattern=r"\S")] | Annotated[list[str], msgspec.Meta(min_length=1, max_length=1)]
    text: str | None = None
    answer: str = "accept"
    user: Any = None
    names: ClassVar[dict[str, str]] = {"start_offset": "start", "end_offset": "end", "labels": "label"}
    without_effect: ClassVar[tuple[str, ...]] = (
        *("id", "kb_id", "input_hash", "pattern", "prob", "manual", "created_at", "updated_at", "document", "example"),
        *("rank", "score", "source", "token_start", "token_end", "globalOffsets", "uuid"),
    )


class _StudioRegion(_Form):
    """A result of Label Studio. `to_name` is the name of the annotated text."""

    value: dict[str, Any]
    type: str = "labels"
    to_name: str = ""
    without_effect: ClassVar[tuple[str, ...]] = (
        *("id", "from_name", "hidden", "locked", "meta", "origin", "parentID", "parent_id", "readonly", "score"),
    )


class _StudioAnnotation(_Form):
    """The results of one annotator for one task of Label Studio, which are not used if the task was skipped."""

    result: list[dict[str, Any]]
    was_cancelled: bool = False
    skipped: bool = False
    without_effect: ClassVar[tuple[str, ...]] = (
        *("id", "bulk_created", "completed_by", "created_ago", "created_at", "created_username", "draft_created_at"),
        *("ground_truth", "honeypot", "import_id", "last_action", "last_created_by", "lead_time", "parent_annotation"),
        *("parent_prediction", "prediction", "project", "result_count", "task", "unique_id", "updated_at"),
        *("updated_by", "was_postponed"),
    )


class SpanReader:
    """Reads the spans of the rows of one file.

    Args:
      column: the column of the spans; "" to detect it by the names `SPAN_COLUMNS`.
      field: the name of the text in Label Studio's data.
    """

    def __init__(self, column: str, field: str) -> None:
        self._columns = (column.casefold(),) if column else SPAN_COLUMNS
        self._field = field
        self._other_names: set[str] = set()  # Label Studio's names of the text that are not fields of the data
        self._rows: dict[Any, tuple[str, list[Span]]] = {}  # maps ids and texts to a row and its spans

    def has_spans(self, values: Mapping[str, Any]) -> bool:
        """Returns True if a column contains a list of spans."""
        return any(isinstance(mark, list | dict) for name in self._names(values) for mark in values[name])

    def _names(self, values: Mapping[str, Any]) -> list[str]:
        return [name for name in values if name.casefold() in self._columns and isinstance(values[name], list)]

    def spans(self, values: Mapping[str, Any], text: str, where: str) -> list[Span] | None:
        """Returns the spans of a row in the order of the file; None if the row was skipped or is not annotated.

        Args:
          values: the row.
          text: the text of the row.
          where: the file and the line, for messages.

        Raises:
          InputError: if a span can't be used, or annotators disagree.
        """
        names = [name for name in self._names(values) if values[name]] or self._names(values)[:1]
        if len(names) != 1:
            problem = f"are spans in {' and '.join(names)}" if names else "is no list of tags or spans"
            raise InputError(f"{where}: there {problem}. Pass the column as --tag_column.")
        if isinstance(values.get("data"), dict) and names[0] in _STUDIO_COLUMNS:
            spans = self._of_studio(values["data"], values[names[0]], text, where)
        else:
            spans = _spans(values[names[0]], text, where)
        if spans is None:
            return None
        number = values.get("_input_hash", values.get("id"))
        first, known = self._rows.setdefault((str(number), text), (where, spans))
        if number is not None and sorted(known) != sorted(spans):
            raise InputError(f"{where}: the same text has other spans in {first}. Keep the spans of one annotator.")
        return spans

    def _of_studio(
        self, data: Mapping[str, Any], annotations: Sequence[Any], text: str, where: str
    ) -> list[Span] | None:
        """Returns the spans of a task of Label Studio; None if all annotations are skipped."""
        alternatives: list[list[Span]] = []
        for annotation in (_StudioAnnotation.of(value, where) for value in annotations):
            if annotation.was_cancelled or annotation.skipped:
                continue
            results = (result for result in annotation.result if result.get("type") not in _OTHER_RESULTS)
            regions = [_StudioRegion.of(result, where) for result in results]
            for region in regions:
                if region.type != "labels":
                    raise InputError(f"{where}: a result has the type {region.type!r} instead of 'labels'. Remove it.")
                self._other_names |= {region.to_name} - {"", self._field}
            if len(self._other_names) > 1 or self._other_names & data.keys():
                names = " and ".join(sorted(self._other_names))
                raise InputError(f"{where}: regions are in {names}, but the text is {self._field}. Keep one text.")
            alternatives.append(_spans([region.value for region in regions], text, where))
        if any(sorted(spans) != sorted(alternatives[0]) for spans in alternatives):
            raise InputError(f"{where}: {len(alternatives)} annotations of the task differ. Keep one of them.")
        return alternatives[0] if alternatives else None


def _spans(annotations: Sequence[Any], text: str, where: str) -> list[Span]:
    """Returns the spans in a list of [start, end, type] or of objects.

    Args:
      annotations: the list.
      text: the text, with which the spans' own texts are compared.
      where: the file and the line, for messages.
    """
    spans = []
    for value in annotations:
        if isinstance(value, list | tuple) and len(value) == 3:
            value = dict(zip(("start", "end", "label"), value, strict=True))
        if not isinstance(value, dict):
            raise InputError(f"{where}: {value!r:.60} is not a span. Use [start, end, type].")
        span = _Span.of(value, where)
        if not 0 <= span.start < span.end:
            raise InputError(f"{where}: a span is from {span.start} to {span.end}. Correct or remove it.")
        marked = text[span.start : span.end]
        if span.start < len(text) < span.end:
            raise InputError(f"{where}: a span ends at {span.end} of {len(text)} characters. Correct the offsets.")
        if span.text and span.text.replace("\\n", "\n").split() != marked.split():
            raise InputError(
                f"{where}: the characters {span.start} to {span.end} are {marked!r}, but the span has the text "
                f"{span.text!r}. Correct the offsets, which count Unicode characters from 0."
            )
        if span.answer == "accept":
            spans.append(span)
    if len({span.user for span in spans}) > 1:
        raise InputError(f"{where}: several users have marked spans. Keep the spans of one user.")
    return [Span(span.start, span.end, span.label if isinstance(span.label, str) else span.label[0]) for span in spans]
