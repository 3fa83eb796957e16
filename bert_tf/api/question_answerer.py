"""Extractive question answering."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, Unpack

from bert_tf.api import in_memory
from bert_tf.api.arguments import PathLike
from bert_tf.api.base import Estimator
from bert_tf.api.setting_types import QuestionAnswererSettings
from bert_tf.finetuning import dev_split
from bert_tf.finetuning.task import Task
from bert_tf.runtime.errors import InputError, first_of
from bert_tf.tasks import hf_names
from bert_tf.tasks.squad.answerer import Answerer
from bert_tf.tasks.squad.evaluation import evaluate
from bert_tf.tasks.squad.predictions import PLACEHOLDER, SquadPredictions
from bert_tf.tasks.squad.questions import Answer, SquadExample, make_example
from bert_tf.tasks.squad.rules import PREDICT_SPLIT, AnswerConfig, SquadConfig
from bert_tf.tasks.squad.squad_task import SquadTask


class QuestionAnswerer(Estimator):
    """Answers each question with a span of its context: SQuAD 1.1 and 2.0 (paper, sections 4.2 and 4.3).

    Examples are pairs (question, context), or dicts or rows of a table with these names.

    A label is one answer or a list of answers. An answer is a text (the first occurrence in the context is used), a
    pair (text, index of the first character in the context), or SQuAD's `{"text": ..., "answer_start": ...}`, whose
    values may also be lists. Training uses the first answer that occurs in the context. With
    `version_2_with_negative=True`, an empty text means that there is no answer. If no labels are passed, the `answers`
    of the examples are used.

    `from_pretrained` also accepts the settings of `bert_tf.tasks.squad.rules.SquadConfig`.

    Examples:
      >>> lengths = {"max_seq_length": 64, "max_query_length": 16, "doc_stride": 16}
      >>> model = bert_tf.QuestionAnswerer.from_pretrained("build/quickstart/pretrained", **lengths)
      >>> examples = [("Who sat?", "He sat down."), ("Who danced?", "She danced with him.")] * 8
      >>> scores = model.fit(examples, ["He", "She"] * 8, epochs=5, batch_size=4, learning_rate=1e-3, verbose=0)
      >>> model.predict([("Who sat?", "She sat down.")])
      ['She']
      >>> model.predict_n_best([("Who sat?", "She sat down.")])[0][0]
      {'text': 'She', 'probability': 0.9999, 'start_logit': 5.2741, 'end_logit': 5.0325}
    """

    _ARCHITECTURE = hf_names.SPAN
    _MAX_SEQ_LENGTH = 384
    _OUTPUT_WEIGHTS = "cls/squad/output_weights"
    _OPTIONS = SquadConfig
    _LABEL_COLUMNS = ("answers",)
    _DEV = _TEST = PREDICT_SPLIT

    if TYPE_CHECKING:

        @classmethod
        def from_pretrained(  # noqa: D102 (inherited)
            cls, path: PathLike, labels: None = None, **settings: Unpack[QuestionAnswererSettings]
        ) -> Self: ...

    def _check_options(self) -> None:
        self._squad_config.check_lengths()

    def _task(self, examples: Mapping[str, Sequence[SquadExample]], does_train: bool, **data: Any) -> SquadTask:
        if not does_train:
            return SquadTask(self._squad_config, predict_file=examples[PREDICT_SPLIT])
        if data["selection_metric"]:
            raise InputError(
                "selection_metric: a QuestionAnswerer always uses F1. Omit this argument.", "selection_metric"
            )
        train, dev = examples["train"], examples.get("dev")
        if data["dev_fraction"]:
            train, dev = dev_split.divide(train, [None] * len(train), data["dev_fraction"])
        return SquadTask(self._squad_config, [list(map(_with_one_answer, train))], dev)

    def predict(self, x: Any) -> list[str]:
        """Returns the best answer to each question; "" if there is none.

        Args:
          x: the questions with their contexts, as in `fit`, without answers.

        Raises:
          InputError: if there is no trained model, or an example can't be used.
        """
        return list(self._predictions(x).answers.values())

    def predict_n_best(self, x: Any) -> list[list[dict[str, Any]]]:
        """Returns the n best answers to each question; n is the setting `n_best_size`.

        Args:
          x: see `predict`.

        Returns:
          A list for each question, the most probable answer first. A list may be empty. Each answer is a dictionary:
          `text`; `probability`, relative to the answers in the list; `start_logit` and `end_logit`, the logits of the
          answer's first and last token.

        Raises:
          InputError: if there is no trained model, or an example can't be used.
        """
        return list(self._predictions(x).n_best.values())

    def evaluate(self, x: Any, y: Any = None) -> dict[str, float]:
        """Returns exact match and F1 in percent, computed by SQuAD's official evaluation (needs the extra "squad").

        If a question has several answers, the best match counts. Answers need not occur in the context.

        Args:
          x: the questions with their contexts; see `fit`.
          y: the answers.

        Raises:
          InputError: if there is no trained model, or an example or an answer can't be used.
        """
        examples = self._examples(*self._labelled(x, y, "x")[:2])
        task, *predicted = self._outputs(self._TEST, examples, self._settings.predict_batch_size)
        return evaluate(examples, task.decode(*predicted), self._options.version_2_with_negative)

    def score(self, x: Any, y: Any = None) -> float:
        """Returns the F1 score of `evaluate`, for comparing models.

        Args:
          x: see `evaluate`.
          y: see `evaluate`.
        """
        return self.evaluate(x, y)["f1"]

    def _predictions(self, x: Any) -> SquadPredictions:
        predictions = self._decoded(x, self._settings.predict_batch_size)
        for qas_id in predictions.without_candidates:
            predictions.answers[qas_id] = ""
            best = predictions.n_best[qas_id]  # may contain the placeholder of the original format
            predictions.n_best[qas_id] = [entry for entry in best if entry["text"] != PLACEHOLDER]
        return predictions

    def _load(self, task: Task) -> Answerer:
        return Answerer(self._run(task), AnswerConfig())

    @property
    def _squad_config(self) -> SquadConfig:
        config = self._settings
        return self._options.replace(
            max_seq_length=config.max_seq_length, pad_to_max_seq_length=config.training.pad_to_max_seq_length
        )

    def _examples(self, values: Sequence[Any], labels: Sequence[Any] | None) -> list[SquadExample]:
        table = []
        for number, example in enumerate(values):
            where = f"example {number}"
            question, context = _pair(example, where)
            answers = None if labels is None else _listed(labels[number], context, where)
            is_impossible = answers == []
            if is_impossible and not self._options.version_2_with_negative:
                raise InputError(f"{where} has no answer. Pass version_2_with_negative=True to from_pretrained().")
            table.append(make_example(str(number), question, context, answers, is_impossible))
        return table


def _pair(example: Any, where: str) -> tuple[str, str]:
    """Returns the question and the context of an example."""
    if isinstance(example, Mapping):
        if not {"question", "context"} <= example.keys():
            raise InputError(f"{where} has {first_of(map(repr, example))}. Give 'question' and 'context'.")
        example = in_memory.as_list([example["question"], example["context"]], where)
    if not isinstance(example, list | tuple) or len(example) != 2:
        raise InputError(f"{where} is {str(example)[:60]!r}. Use a pair (question, context).")
    return in_memory.text(example[0], where), in_memory.text(example[1], where)


def _listed(label: Any, context: str, where: str) -> list[Answer]:
    """Returns the answers in a label. A missing position becomes the first occurrence of the text, or -1."""
    what = f"the answer of {where}"
    several = label if isinstance(label, list | tuple) and not _is_located(label) else [label]
    by_answer = (_of_dict(answer, what) if isinstance(answer, Mapping) else [answer] for answer in several)
    single = itertools.chain.from_iterable(by_answer)
    answers = [answer if _is_located(answer) else (answer, None) for answer in single]
    for text, _ in answers:
        if not isinstance(text, str):
            raise InputError(f"{what} is {str(label)[:60]!r}. Use a text or a pair (text, first character), or a list.")
        if text.isspace():
            raise InputError(f'{what} is {text!r}. Give words of the context, or "" for no answer.')
    return [
        {"text": text, "answer_start": context.find(text) if start is None else start}
        for text, start in answers
        if text
    ]


def _of_dict(answer: Mapping[str, Any], what: str) -> list[tuple[Any, Any]]:
    """Returns pairs (text, position) from a dict in SQuAD's format, whose values may be lists."""
    text, start = answer.get("text"), answer.get("answer_start")
    if isinstance(text, str):
        text, start = [text], [start]
    texts, starts = (
        in_memory.as_list(part, f"{name!r} of {what}") for name, part in (("text", text), ("answer_start", start))
    )
    return list(itertools.zip_longest(texts, starts))


def _is_located(answer: Any) -> bool:
    """Returns True for a pair (text, index), False for two texts. Excludes bools, which are instances of int."""
    return isinstance(answer, list | tuple) and len(answer) == 2 and type(answer[1]) is int


def _with_one_answer(example: SquadExample) -> SquadExample:
    """Returns a training example with the first answer that occurs in the context at its stated position."""
    if example.is_impossible:
        return example
    for answer in example.answers:
        if answer["answer_start"] >= 0 and example.context.startswith(answer["text"], answer["answer_start"]):
            return dataclasses.replace(example, answers=[answer])
    text, start = example.answers[0].values()
    where = "in" if start < 0 else f"at character {start} of"
    raise InputError(f"the answer {text!r} of example {example.qas_id} is not {where} its context. Correct it.")
