"""Reads SQuAD files, 1.1 and 2.0, like the original code, and reports the questions that can't be used.

A file is `{"data": [{"paragraphs": [{"context", "qas": [{"id", "question", "answers": [{"text", "answer_start"}],
"is_impossible"}]}]}]}`. A file may have questions of both versions: a question without `is_impossible` is impossible if
its list of answers is empty. A file to predict need not have `answers`.
"""

import dataclasses
import re
from collections.abc import Iterable, Iterator
from typing import Any, NotRequired, TypedDict

from absl import logging

from bert_tf.runtime import files, json_files
from bert_tf.runtime.errors import check
from bert_tf.runtime.files import InputError
from bert_tf.tasks import tables
from bert_tf.tasks.squad.rules import SquadConfig

# The original white space in a context, which excludes the no-break space and the ideographic space.
_WORD = re.compile("[^ \t\r\n\u202f]+")
# The largest number of ids in a message.
_NAMED_IDS = 10


class _Answer(TypedDict):
    text: str
    answer_start: NotRequired[int]


class _Question(TypedDict):
    id: str
    question: str
    answers: NotRequired[list[_Answer]]
    is_impossible: NotRequired[bool]


class _Paragraph(TypedDict):
    context: str
    qas: list[_Question]


class Article(TypedDict):
    """An article of a file's "data", with only the keys that this project reads."""

    paragraphs: list[_Paragraph]


class _File(TypedDict):
    data: list[Article]


@dataclasses.dataclass
class SquadExample:
    """A question, its paragraph, and for training the answer.

    Attributes:
      qas_id: the question's id.
      question_text: the question.
      doc_tokens: the paragraph's words. Questions of one paragraph share one list.
      orig_answer_text: the answer; "" if there is none, None in prediction.
      start_position: index of the answer's first word; -1 if there is none, None in prediction.
      end_position: index of the answer's last word.
      is_impossible: whether the paragraph does not contain the answer (2.0; False in prediction).
      context: the paragraph as written in the file; None if only its words are known.
      answer_offset: index of the answer's first character in `context`; None without an answer.
    """

    qas_id: str
    question_text: str
    doc_tokens: list[str]
    orig_answer_text: str | None = None
    start_position: int | None = None
    end_position: int | None = None
    is_impossible: bool = False
    context: str | None = None
    answer_offset: int | None = None


@dataclasses.dataclass
class SquadData:
    """The content of a file.

    Attributes:
      examples: the usable questions, in order.
      articles: the file's unchanged "data", for the evaluation scripts.
      dropped: maps ids to reasons, for training questions whose answer is not at the position in the file.
      realigned: ids of questions whose answer was found at another position.
      blank: ids of examples whose question or context is empty. They are kept.
    """

    examples: list[SquadExample]
    articles: list[Article]
    dropped: dict[str, str] = dataclasses.field(default_factory=dict)
    realigned: list[str] = dataclasses.field(default_factory=list)
    blank: list[str] = dataclasses.field(default_factory=list)

    def report(self) -> list[str]:
        """Returns lines that count and name the dropped or corrected questions."""
        groups: dict[str, list[str]] = {}
        for qas_id, reason in self.dropped.items():
            groups.setdefault(f"dropped, because {reason}", []).append(qas_id)
        groups["used with a corrected answer offset"] = self.realigned
        groups["used, though the question or the context is blank"] = self.blank
        total = len(self.examples) + len(self.dropped)
        return [f"{len(ids)} of {total} questions {what}: {name_ids(ids)}" for what, ids in groups.items() if ids]


def name_ids(ids: list[str]) -> str:
    """Returns the first few ids, for a message."""
    more = f" and {len(ids) - _NAMED_IDS} more" if len(ids) > _NAMED_IDS else ""
    return ", ".join(ids[:_NAMED_IDS]) + more


def split_context(context: str) -> list[str]:
    """Splits a context into words, like the original code."""
    return _WORD.findall(context)


def make_example(qas_id: str, question_text: str, context: str) -> SquadExample:
    """Returns a question without a file."""
    return SquadExample(qas_id, question_text, split_context(context), context=context)


def read_squad_examples(
    input_file: str, is_training: bool, version_2_with_negative: bool = False
) -> list[SquadExample]:
    """Reads a file like the original code.

    A training question is dropped, and named in the log, if the words at its answer's position do not include the
    answer.

    Args:
      input_file: the JSON file.
      is_training: whether to read the answers; each question must then have exactly one.
      version_2_with_negative: whether some questions may be marked as impossible.

    Raises:
      InputError: see `read_squad`. As in the original code, a file to predict may be of either version.
    """
    articles = load_articles(input_file, _file_flag(is_training))
    if is_training:
        _check_versions(articles, version_2_with_negative, _file_flag(is_training))
    data = _read(articles, is_training, SquadConfig(version_2_with_negative=version_2_with_negative))
    for line in data.report():
        logging.warning("%s", line)
    return data.examples


def read_squad(input_file: str | list[Article], is_training: bool, config: SquadConfig = SquadConfig()) -> SquadData:
    """Reads a file, and records the questions that are dropped or corrected.

    Args:
      input_file: the JSON file, or its "data".
      is_training: whether to read the answers; each question must then have exactly one.
      config: with `answer_text="original"`, the same training questions are kept as in the original code. With
        "offsets", a question is kept if its answer is in the context, character by character, at the position in the
        file. With `fix_answer_offsets`, an answer at another position is used (the nearest one).

    Raises:
      InputError: if the file is not JSON in SQuAD's format, an id occurs twice, a training question does not have
        exactly one answer (or none, in SQuAD 2.0), or no question can be used.
    """
    flag = _file_flag(is_training)
    articles = load_articles(input_file, flag) if isinstance(input_file, str) else input_file
    if is_training:
        _check_versions(articles, config.version_2_with_negative, flag)
    data = _read(articles, is_training, config)
    if not data.examples:
        raise InputError("\n".join([f"{flag}: there is no usable question. Add some.", *data.report()]))
    return data


def load_articles(input_file: str, what: str) -> list[Article]:
    """Reads a file's "data", and checks its format and the ids.

    Args:
      input_file: the JSON file, or a table with the columns id, question, context and answers, as of datasets.
      what: its name in messages, for example `--predict_file`.

    Raises:
      InputError: if the file is not in SQuAD's format, or an id occurs twice.
    """
    if _is_table(files.require_file(input_file, what), what):
        rows = tables.read_table(input_file, ("question", "context"))
        articles = check(tables.convert_rows(rows, _article, input_file, "error"), list[Article], what)
    else:
        articles = json_files.read(input_file, what, _File)["data"]
    seen: set[str] = set()
    for _, questions in paragraphs(articles):
        for question in questions:
            if question["id"] in seen:
                raise InputError(f"{what}: {input_file}: the id {question['id']!r} occurs twice. Rename one of them.")
            seen.add(question["id"])
    return articles


def _is_table(path: str, flag_name: str) -> bool:
    found = tables.format_of(path)
    text = files.read_text(path, flag_name) if found.startswith(".json") else '"question"'
    return bool(found) and '"question"' in text and '"qas"' not in text


def _article(row: tables.Row) -> dict[str, Any]:
    """Returns a row of a table as an article with one question. Its answers may be one object with lists."""
    values = row.values | {"id": str(row.values.get("id", row.line))}
    if isinstance(answers := values.get("answers"), dict):
        values["answers"] = [dict(zip(answers, part, strict=True)) for part in zip(*answers.values(), strict=True)]
    return {"paragraphs": [{"context": values.pop("context", None), "qas": [values]}]}


def paragraphs(articles: Iterable[Article]) -> Iterator[tuple[str, list[_Question]]]:
    """Yields every context of a file's "data", with its questions."""
    for article in articles:
        for paragraph in article["paragraphs"]:
            yield paragraph["context"], paragraph["qas"]


def question_name(what: str, qas_id: str) -> str:
    """Returns a question's name for messages."""
    return f"{what}: question {qas_id!r}"


def _file_flag(is_training: bool) -> str:
    return "--train_file" if is_training else "--predict_file"


def is_impossible(question: _Question) -> bool:
    """Returns whether a question has no answer. Without `is_impossible`, this is so if its list of answers is empty."""
    return question.get("is_impossible", question.get("answers") == [])


def _check_versions(articles: list[Article], version_2_with_negative: bool, what: str) -> None:
    for _, questions in paragraphs(articles):
        for question in questions:
            if not version_2_with_negative and is_impossible(question):
                where = question_name(what, question["id"])
                raise InputError(
                    f"{where} is impossible or has no answer (SQuAD 2.0). Set --version_2_with_negative=True."
                )


def _read(articles: list[Article], is_training: bool, config: SquadConfig) -> SquadData:
    data = SquadData(examples=[], articles=articles)
    for context, questions in paragraphs(articles):
        doc_tokens = split_context(context)
        word_of_character = _word_of_character(context) if is_training else []
        for question in questions:
            example = SquadExample(question["id"], question["question"], doc_tokens, context=context)
            if is_training and config.version_2_with_negative and is_impossible(question):
                example.is_impossible, example.orig_answer_text = True, ""
                example.start_position = example.end_position = -1
            elif is_training:
                offset = _read_answer(example, question, config)
                if reason := _find_words(example, word_of_character, config):
                    data.dropped[example.qas_id] = reason
                    continue
                if example.answer_offset != offset:
                    data.realigned.append(example.qas_id)
            data.examples.append(example)
            if not context.strip() or not example.question_text.strip():
                data.blank.append(example.qas_id)
    return data


def _word_of_character(context: str) -> list[int]:
    """Returns the index of each character's word. White space belongs to the previous word, at the start to -1."""
    words: list[int] = []
    count = 0
    for count, match in enumerate(_WORD.finditer(context), start=1):
        words += [count - 2] * (match.start() - len(words))
        words += [count - 1] * (match.end() - match.start())
    return words + [count - 1] * (len(context) - len(words))


def _read_answer(example: SquadExample, question: _Question, config: SquadConfig) -> int:
    """Stores a training answer in its example, and returns the offset in the file."""
    answers = question.get("answers", [])
    if len(answers) != 1 or not answers[0]["text"] or "answer_start" not in answers[0]:
        where = question_name(_file_flag(is_training=True), example.qas_id)
        raise InputError(f"{where}: 'answers' is {str(answers)[:60]}. Pass one with 'text' and 'answer_start'.")
    text, offset = answers[0]["text"], answers[0]["answer_start"]
    example.orig_answer_text = text
    example.answer_offset = _nearest_offset(example.context, text, offset) if config.fix_answer_offsets else offset
    return offset


def _find_words(example: SquadExample, word_of_character: list[int], config: SquadConfig) -> str:
    """Sets the positions of the answer's words. Returns the reason why the question can't be used, or ""."""
    text, offset = example.orig_answer_text, example.answer_offset
    if not example.doc_tokens:
        return "the context has no words"
    try:
        # As in the original code, a negative offset counts from the end.
        example.start_position = word_of_character[offset]
        example.end_position = word_of_character[offset + len(text) - 1]
    except IndexError:
        return "the answer's position is outside the context"
    if config.by_offsets:
        is_there = offset >= 0 and example.context.startswith(text, offset)
    else:
        is_there = " ".join(text.split()) in " ".join(
            example.doc_tokens[example.start_position : example.end_position + 1]
        )
    hint = "" if config.fix_answer_offsets else " (--fix_answer_offsets searches for it)"
    return "" if is_there else f"the answer isn't at its position{hint}"


def _nearest_offset(context: str, text: str, offset: int) -> int:
    """Returns the position of `text` nearest to `offset`, or the first of two; `offset` if there is none."""
    places = [match.start() for match in re.finditer(f"(?={re.escape(text)})", context)]
    return min(places, key=lambda place: abs(place - offset), default=offset)
