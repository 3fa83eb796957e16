"""Answers to questions, as parts of a text."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from bert_tf.api import in_memory
from bert_tf.api.base import Estimator
from bert_tf.runtime.errors import InputError
from bert_tf.tasks import architectures, dev_split
from bert_tf.tasks.squad.evaluation import evaluate
from bert_tf.tasks.squad.predictions import PLACEHOLDER, SquadPredictions
from bert_tf.tasks.squad.rules import PREDICT_SPLIT, AnswerConfig, SquadConfig
from bert_tf.tasks.squad.squad_task import NULL_THRESHOLD_FILE, Answerer, SquadTask


class QuestionAnswerer(Estimator):
    """Answers questions about texts with a part of the text: SQuAD 1.1 and 2.0 (paper, sections 4.2 and 4.3).

    Examples are pairs (question, context), or dicts or rows of a pandas table with these names. Labels are answers: a
    text, of which the first place in the context is taken, a pair (text, number of its first character in the
    context), or SQuAD's `{"text": ..., "answer_start": ...}`; or several, in a list or as lists in such a dict, of
    which training takes the first one that is in the context. With `version_2_with_negative=True`, the empty text says
    that there is no answer. Where no labels are given, those named `answers` in the examples are taken.

        answerer = bert_tf.QuestionAnswerer.from_pretrained("models/bert-base")
        answerer.fit([("Who sat?", "He sat down.")], ["He"])
        answerer.predict([("What did he do?", "He sat down.")])

    The settings of `from_pretrained` are also those of `bert_tf.tasks.squad.rules.SquadConfig`.
    """

    _ARCHITECTURE = architectures.SPAN
    _MAX_SEQ_LENGTH = 384
    _OUTPUT_WEIGHTS = "cls/squad/output_weights"
    _OPTIONS = SquadConfig
    _SAVED_FILES = (*Estimator._SAVED_FILES, NULL_THRESHOLD_FILE)

    def _training_task(
        self,
        train: Sequence[dict[str, Any]],
        dev: Sequence[dict[str, Any]] | None,
        dev_fraction: float,
        metric: str | None,
    ) -> SquadTask:
        if metric:
            raise InputError("selection_metric: a QuestionAnswerer is chosen by its F1. Omit it.", "selection_metric")
        if dev_fraction:
            train, dev = dev_split.divide(train, [None] * len(train), dev_fraction)
        return SquadTask(self._squad_config, [_articles(map(_with_one_answer, train))], dev and _articles(dev))

    def _by_name(self, x: Any, y: Any, name: str) -> tuple[Any, Any]:
        """The examples, a table's rows as dicts, and the labels, which dicts may hold themselves."""
        if hasattr(x, "itertuples"):  # a pandas.DataFrame
            x = x.to_dict("records")
        if y is None and not isinstance(x, tf.data.Dataset):
            x = in_memory.as_list(x, name)
            if all(isinstance(example, Mapping) and "answers" in example for example in x):
                y = [example["answers"] for example in x]
        return x, y

    def predict(self, x: Any) -> list[str]:
        """The best answer to each question; "" if there is none."""
        return list(self._predictions(x).answers.values())

    def predict_n_best(self, x: Any) -> list[list[dict[str, Any]]]:
        """The best answers to each question, which may be none: text, probability among them, and the two logits."""
        return list(self._predictions(x).n_best.values())

    def evaluate(self, x: Any, y: Any = None) -> dict[str, float]:
        """Exact match and F1 in percent, as the official evaluation of SQuAD gives them (needs the extra "squad").

        Of several answers to a question, the one that fits best counts. They need not be in the context.
        """
        task, predictions = self._answers(self._table(*in_memory.with_labels(*self._by_name(x, y, "x"), "x")))
        return evaluate(task.articles, predictions, task.config.version_2_with_negative)

    def score(self, x: Any, y: Any = None) -> float:
        """The F1 of `evaluate`, by which models are compared."""
        return self.evaluate(x, y)["f1"]

    def _predictions(self, x: Any) -> SquadPredictions:
        predictions = self._answers(self._table(in_memory.as_list(self._by_name(x, None, "x")[0], "x"), None))[1]
        for qas_id in predictions.without_candidates:
            predictions.answers[qas_id] = ""
            best = predictions.n_best[qas_id]  # where the release's files need an answer
            predictions.n_best[qas_id] = [entry for entry in best if entry["text"] != PLACEHOLDER]
        return predictions

    def _answers(self, table: Sequence[Mapping[str, Any]]) -> tuple[SquadTask, SquadPredictions]:
        self._check_usable()
        if not table:
            raise InputError("x has no examples. Give some.", "x")
        task = SquadTask(self._squad_config, predict_file=_articles(table))
        examples = task.examples(PREDICT_SPLIT)
        windows = task.featurize(examples, self.tokenizer, self._settings.max_seq_length)
        return task, self._answerer.answer(examples, windows, shown=False)

    @property
    def _answerer(self) -> Answerer:
        self._predicting = self._predicting or Answerer(self._run(SquadTask(self._squad_config)), AnswerConfig())
        return self._predicting

    @property
    def _squad_config(self) -> SquadConfig:
        config = self._settings
        return self._options.replace(
            max_seq_length=config.max_seq_length, pad_to_max_seq_length=config.pad_to_max_seq_length
        )

    def _table(self, examples: Sequence[Any], labels: Sequence[Any] | None) -> list[dict[str, Any]]:
        """Contexts with their questions as SQuAD's files hold them."""
        table = []
        for number, example in enumerate(examples):
            place = f"example {number}"
            question, context = _pair(example, place)
            found = [] if labels is None else [answer for answer in _listed(labels[number], place) if answer[0]]
            is_impossible = labels is not None and not found
            if is_impossible and not self._options.version_2_with_negative:
                raise InputError(f"{place} has no answer. Pass version_2_with_negative=True to from_pretrained().")
            answers = [
                {"text": text, "answer_start": context.find(text) if start is None else start} for text, start in found
            ]
            entry = {"id": str(number), "question": question, "answers": answers, "is_impossible": is_impossible}
            table.append({"context": context, "question": entry})
        return table


def _articles(table: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns rows as the "data" of a SQuAD file."""
    return [{"paragraphs": [{"context": row["context"], "qas": [row["question"]]} for row in table]}]


def _pair(example: Any, place: str) -> tuple[str, str]:
    """The question and the context of an example."""
    if isinstance(example, Mapping):
        if not {"question", "context"} <= example.keys():
            raise InputError(f"{place} has {', '.join(map(repr, example))}. Give 'question' and 'context'.")
        example = in_memory.as_list([example["question"], example["context"]], place)
    if not isinstance(example, list | tuple) or len(example) != 2:
        raise InputError(f"{place} is {str(example)[:60]!r}. Use a pair (question, context).")
    return in_memory.text(example[0], place), in_memory.text(example[1], place)


def _listed(label: Any, place: str) -> list[tuple[str, int | None]]:
    """The answers that a label gives: texts and, where they are known, the numbers of their first characters."""
    what = f"the answer of {place}"
    several = label if isinstance(label, list | tuple) and not _is_located(label) else [label]
    by_answer = (_of_dict(answer, what) if isinstance(answer, Mapping) else [answer] for answer in several)
    single = itertools.chain.from_iterable(by_answer)
    answers = [answer if _is_located(answer) else (answer, None) for answer in single]
    for text, _ in answers:
        if not isinstance(text, str):
            raise InputError(f"{what} is {str(label)[:60]!r}. Use a text or a pair (text, first character), or a list.")
        if text.isspace():
            raise InputError(f'{what} is {text!r}. Give words of the context, or "" for no answer.')
    return answers


def _of_dict(answer: Mapping[str, Any], what: str) -> list[tuple[Any, Any]]:
    """The pairs in a dict in SQuAD's form, of which the values may be those of one answer or lists of them."""
    text, start = answer.get("text"), answer.get("answer_start")
    if isinstance(text, str):
        text, start = [text], [start]
    texts, starts = (
        in_memory.as_list(part, f"{name!r} of {what}") for name, part in (("text", text), ("answer_start", start))
    )
    return list(itertools.zip_longest(texts, starts))


def _is_located(answer: Any) -> bool:
    """Whether it is a pair with a number, and not two texts; True and False are also instances of int."""
    return isinstance(answer, list | tuple) and len(answer) == 2 and type(answer[1]) is int


def _with_one_answer(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row to train on, with the first of the answers that is in the context at its place."""
    context, question = row["context"], row["question"]
    for answer in question["answers"]:
        if answer["answer_start"] >= 0 and context.startswith(answer["text"], answer["answer_start"]):
            return {"context": context, "question": {**question, "answers": [answer]}}
    if question["is_impossible"]:
        return row
    text, start = question["answers"][0].values()
    where = "in" if start < 0 else f"at character {start} of"
    raise InputError(f"the answer {text!r} of example {question['id']} is not {where} its context. Correct it.")
