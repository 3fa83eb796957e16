"""Reads SQuAD files, 1.1 and 2.0, like the original code, and reports the questions that can't be used.

A file is `{"data": [{"paragraphs": [{"context", "qas": [{"id", "question", "answers": [{"text", "answer_start"}],
"is_impossible"}]}]}]}`. A file may contain questions of both versions. If `is_impossible` is missing, a question is
impossible if the list of answers is empty. In a file to predict, `answers` are optional.
"""

import dataclasses
import functools
import re
from collections.abc import Iterable, Sequence
from typing import Any, NotRequired, TypedDict

from absl import logging

from bert_tf.runtime import json_files
from bert_tf.runtime.errors import InputError, check, first_of
from bert_tf.tasks import example_rows, tables
from bert_tf.tasks.squad.rules import SquadConfig

# A word of a context. As in the original code, the no-break space and the ideographic space do not separate words.
_WORD = re.compile("[^ \t\r\n\u202f]+")


class Answer(TypedDict):
    """A right answer, with the index of its first character in the context."""

    text: str
    answer_start: NotRequired[int]


class _Question(TypedDict):
    id: str
    question: str
    answers: NotRequired[list[Answer]]
    is_impossible: NotRequired[bool]


class _Paragraph(TypedDict):
    context: str
    qas: list[_Question]


class _Article(TypedDict):
    paragraphs: list[_Paragraph]


class _File(TypedDict):
    data: list[_Article]


@dataclasses.dataclass
class SquadExample:
    """A question and its paragraph. Training questions also have the answer.

    Attributes:
      qas_id: the id of the question.
      question_text: the question.
      doc_tokens: the words of the paragraph. Questions about one paragraph share one list.
      orig_answer_text: the answer; "" for no answer; None in prediction.
      start_position: index of the first word of the answer; -1 for no answer; None in prediction.
      end_position: index of the last word of the answer; -1 for no answer; None in prediction.
      is_impossible: whether the paragraph does not contain the answer (2.0).
      context: the paragraph as written in the file; None if only the words are known.
      answer_offset: index of the first character of the answer in `context`; None without an answer.
      answers: the right answers; empty for no answer; None if they are unknown.
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
    answers: list[Answer] | None = dataclasses.field(default=None, repr=False)


@dataclasses.dataclass
class SquadData:
    """The questions of a file.

    Attributes:
      examples: the usable questions, in order.
      dropped: maps the ids of training questions that can't be used to the reasons.
      realigned: ids of training questions with a corrected answer offset.
      shifted: ids of training questions whose answer is not at its offset, so it has other words too.
    """

    examples: list[SquadExample]
    dropped: dict[str, str] = dataclasses.field(default_factory=dict)
    realigned: list[str] = dataclasses.field(default_factory=list)
    shifted: list[str] = dataclasses.field(default_factory=list)

    @property
    def blank(self) -> list[str]:
        """The ids of examples with a blank question or context, which are kept."""
        return [x.qas_id for x in self.examples if not x.question_text.strip() or not x.context.strip()]

    def report(self) -> list[str]:
        """Returns lines with the numbers and the ids of dropped, corrected and blank questions."""
        groups: dict[str, list[str]] = {}
        for qas_id, reason in self.dropped.items():
            groups.setdefault(f"dropped, because {reason}", []).append(qas_id)
        groups["used with a corrected answer offset"] = self.realigned
        groups["used with other words next to the answer (--fix_answer_offsets corrects the offset)"] = self.shifted
        answered = [x.qas_id for x in self.examples if x.is_impossible and x.answers]
        groups["impossible, so their answers are not used"] = answered
        groups["used, though the question or the context is blank"] = self.blank
        total = len(self.examples) + len(self.dropped)
        return [f"{len(ids)} of {total} questions {what}: {first_of(ids)}" for what, ids in groups.items() if ids]


def split_context(context: str) -> list[str]:
    """Splits a context into words, like the original code."""
    return _WORD.findall(context)


def make_example(
    qas_id: str, question_text: str, context: str, answers: list[Answer] | None = None, is_impossible: bool = False
) -> SquadExample:
    """Returns an example for a question that is not from a file."""
    words = split_context(context)
    return SquadExample(qas_id, question_text, words, is_impossible=is_impossible, context=context, answers=answers)


def read_squad_examples(
    input_file: str, is_training: bool, version_2_with_negative: bool = False
) -> list[SquadExample]:
    """Reads a file like the original code.

    If the words at the position of a training answer do not include the answer, the question is dropped, and its id is
    logged. As in the original code, `is_impossible` is False in prediction.

    Args:
      input_file: the JSON file.
      is_training: whether to read the answers. If True, each question must have exactly one answer.
      version_2_with_negative: whether training questions may be marked as impossible. A file to predict may be of
        either version, as in the original code.

    Raises:
      InputError: see `read_squad`.
    """
    data = _read(input_file, is_training, SquadConfig(version_2_with_negative=version_2_with_negative))
    for line in data.report():
        logging.warning("%s", line)
    for example in data.examples:
        example.is_impossible &= is_training
    return data.examples


def read_squad(
    source: str | Sequence[SquadExample], is_training: bool, config: SquadConfig = SquadConfig()
) -> SquadData:
    """Reads questions, and records the dropped and the corrected questions.

    Args:
      source: a JSON file; a table with the columns id, question, context and answers, as in the library datasets; or
        examples.
      is_training: whether to use the answers. If True, each question must have exactly one answer.
      config: with `answer_text="original"`, the same training questions are kept as in the original code. With
        "offsets", a question is kept if the context contains the exact answer at the position in the file. With
        `fix_answer_offsets`, a wrong position is replaced by the nearest position of the answer.

    Raises:
      InputError: if the file is not JSON in SQuAD's format, an id occurs twice, a training question does not have
        exactly one answer (or none, in SQuAD 2.0), or no question can be used.
    """
    data = _read(source, is_training, config)
    if not data.examples:
        raise InputError("\n".join([f"{_flag(is_training)}: no usable question. Add questions.", *data.report()]))
    return data


def _flag(is_training: bool) -> str:
    return "--train_file" if is_training else "--predict_file"


def _read(source: str | Sequence[SquadExample], is_training: bool, config: SquadConfig) -> SquadData:
    examples = _read_file(source, is_training) if isinstance(source, str) else list(source)
    return _with_training_answers(examples, config) if is_training else SquadData(examples)


def _read_file(path: str, is_training: bool) -> list[SquadExample]:
    flag = _flag(is_training)
    file = tables.open_table(path, flag)
    if _is_table(file):
        rows = tables.read_table(file, ("question", "context"))
        articles = check(example_rows.convert_rows(rows, _article, path, "error"), list[_Article], flag)
    else:
        articles = json_files.checked(file.text, f"{flag}: {path}", _File)["data"]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    questions = [question for paragraph in paragraphs for question in paragraph["qas"]]
    # If a file to predict has neither an answer nor an impossible question, empty lists mean unknown answers.
    is_marked = is_training or any(x.get("answers") or x.get("is_impossible") for x in questions)
    examples: dict[str, SquadExample] = {}
    for paragraph in paragraphs:
        context, words = paragraph["context"], split_context(paragraph["context"])
        for question in paragraph["qas"]:
            if (qas_id := question["id"]) in examples:
                raise InputError(f"{flag}: {path}: the id {qas_id!r} occurs twice. Rename one of them.")
            answers = question.get("answers")
            is_impossible = question.get("is_impossible", is_marked and answers == [])
            examples[qas_id] = SquadExample(
                qas_id, question["question"], words, is_impossible=is_impossible, context=context, answers=answers
            )
    return list(examples.values())


def _is_table(file: tables.TableFile) -> bool:
    if file.form.startswith(".json"):
        return '"question"' in file.text and '"qas"' not in file.text
    return file.form != ""


def _article(row: tables.Row) -> dict[str, Any]:
    """Converts a row of a table to an article with one question. `answers` may be a list, or one object with lists."""
    values = row.values | {"id": str(row.values.get("id", row.line))}
    if isinstance(answers := values.get("answers"), dict) and all(isinstance(x, list) for x in answers.values()):
        if len(set(map(len, answers.values()))) > 1:
            raise InputError(f"{row.where}: the lists in 'answers' have different lengths. Correct them.")
        values["answers"] = [dict(zip(answers, fields, strict=True)) for fields in zip(*answers.values(), strict=True)]
    elif isinstance(answers, dict):
        values["answers"] = [answers]
    return {"paragraphs": [{"context": values.pop("context", None), "qas": [values]}]}


def _with_training_answers(examples: Iterable[SquadExample], config: SquadConfig) -> SquadData:
    """Returns the questions with the positions of their answers. Drops questions whose answer is not found."""
    data = SquadData([])
    words_of = functools.lru_cache(maxsize=1)(_word_of_character)  # questions of one paragraph follow one another
    for example in examples:
        where = f"{_flag(is_training=True)}: question {example.qas_id!r}"
        if example.is_impossible:
            if not config.version_2_with_negative:
                raise InputError(
                    f"{where} is impossible or has no answer (SQuAD 2.0). Set --version_2_with_negative=True."
                )
            example.orig_answer_text = ""
            example.start_position = example.end_position = -1
        else:
            answers = example.answers or []
            if len(answers) != 1 or not answers[0]["text"] or "answer_start" not in answers[0]:
                raise InputError(
                    f"{where}: 'answers' is {str(answers)[:60]}. Use a list of one object with 'text' and "
                    "'answer_start'."
                )
            text, offset = answers[0]["text"], answers[0]["answer_start"]
            example.orig_answer_text = text
            example.answer_offset = _nearest(example.context, text, offset) if config.fix_answer_offsets else offset
            if reason := _find_words(example, words_of(example.context), config):
                data.dropped[example.qas_id] = reason
                continue
            nearest = example.answer_offset
            if example.answer_offset != offset:
                data.realigned.append(example.qas_id)
            elif not example.context.startswith(text, offset):
                nearest = _nearest(example.context, text, offset)
            words = words_of(example.context)
            if (words[nearest], words[nearest + len(text) - 1]) != (example.start_position, example.end_position):
                data.shifted.append(example.qas_id)
        data.examples.append(example)
    return data


def _word_of_character(context: str) -> list[int]:
    """Returns the index of the word of each character. White space belongs to the previous word, or to -1."""
    words: list[int] = []
    count = 0
    for count, match in enumerate(_WORD.finditer(context), start=1):
        words += [count - 2] * (match.start() - len(words))
        words += [count - 1] * (match.end() - match.start())
    return words + [count - 1] * (len(context) - len(words))


def _find_words(example: SquadExample, word_of_character: list[int], config: SquadConfig) -> str:
    """Sets `start_position` and `end_position`. Returns the reason why the question can't be used, or ""."""
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


def _nearest(context: str, text: str, offset: int) -> int:
    """Returns the position of `text` nearest to `offset`; `offset` if the context does not contain the text."""
    positions = [match.start() for match in re.finditer(f"(?={re.escape(text)})", context)]
    return min(positions, key=lambda position: abs(position - offset), default=offset)
