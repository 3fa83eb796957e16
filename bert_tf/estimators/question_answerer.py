"""Answers that stand in a text."""

import dataclasses
import functools
import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from bert_tf.estimators import rows
from bert_tf.estimators.base import Estimator
from bert_tf.finetuning.run import FinetuningRun
from bert_tf.finetuning.workflow import WorkflowConfig
from bert_tf.runtime import files
from bert_tf.runtime.files import InputError
from bert_tf.tasks import architectures
from bert_tf.tasks.squad import run as squad_run
from bert_tf.tasks.squad.answerer import AnswerConfig, Answerer
from bert_tf.tasks.squad.evaluation import NULL_THRESHOLD_FILE, evaluate
from bert_tf.tasks.squad.predictions import PLACEHOLDER, SquadPredictions
from bert_tf.tasks.squad.rules import SquadConfig
from bert_tf.tasks.squad.task import PREDICT_SPLIT, SquadTask


class QuestionAnswerer(Estimator):
    """Answers questions about texts with a part of the text: SQuAD 1.1 and 2.0 (paper, sections 4.2 and 4.3).

    Examples are pairs (question, context). Labels are answers: a text, of which the first place in the context is
    taken, or a pair (text, number of its first character in the context). With `version_2_with_negative=True`, the
    empty text says that there is no answer.

        answerer = bert_tf.QuestionAnswerer.from_pretrained("models/bert-base")
        answerer.fit([("Who sat?", "He sat down.")], ["He"])
        answerer.predict([("What did he do?", "He sat down.")])

    Settings of `from_pretrained`: the fields of `bert_tf.tasks.squad.rules.SquadConfig`.
    """

    _ARCHITECTURE = architectures.SPAN
    _SUFFIX = ".json"
    _MAX_SEQ_LENGTH = 384
    _OUTPUT_WEIGHTS = "cls/squad/output_weights"
    _SAVED_FILES = (*Estimator._SAVED_FILES, NULL_THRESHOLD_FILE)

    @classmethod
    def _checked(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        known = {field.name for field in dataclasses.fields(SquadConfig)} - {"max_seq_length"}
        super()._checked({name: value for name, value in settings.items() if name not in known})
        return dict(settings)

    def _training_task(self, paths: Sequence[str]) -> SquadTask:
        return SquadTask(self._config(), paths[:1], *paths[1:])

    def carry_out(
        self, run: FinetuningRun, config: WorkflowConfig, answer_config: AnswerConfig | None = None
    ) -> dict[str, float]:
        """See `Estimator.carry_out`, and `bert_tf.tasks.squad.run.carry_out`."""
        self.__dict__.pop("_answerer", None)
        return squad_run.carry_out(run, config, answer_config or AnswerConfig())

    def predict(self, x: Any) -> list[str]:
        """The best answer to each question; "" if there is none."""
        return list(self._predictions(x).answers.values())

    def predict_n_best(self, x: Any) -> list[list[dict[str, Any]]]:
        """The best answers to each question, which may be none: text, probability among them, and the two logits."""
        return list(self._predictions(x).n_best.values())

    def evaluate(self, x: Any, y: Any = None) -> dict[str, float]:
        """Exact match and F1 in percent, as the official evaluation of SQuAD gives them (needs the extra "models")."""
        task, predictions = self._answers(self._table(*rows.with_labels(x, y, "x")))
        return evaluate(task.articles, predictions, task.config.version_2_with_negative)

    def score(self, x: Any, y: Any = None) -> float:
        """The F1 of `evaluate`, by which models are compared."""
        return self.evaluate(x, y)["f1"]

    def _predictions(self, x: Any) -> SquadPredictions:
        predictions = self._answers(self._table(rows.as_list(x, "x"), None))[1]
        for qas_id in predictions.without_candidates:
            predictions.answers[qas_id] = ""
            best = predictions.n_best[qas_id]  # where the release's files need an answer
            predictions.n_best[qas_id] = [entry for entry in best if entry["text"] != PLACEHOLDER]
        return predictions

    def _answers(self, table: Sequence[Mapping[str, Any]]) -> tuple[SquadTask, SquadPredictions]:
        self._check_usable()
        if not table:
            raise InputError("x has no examples.")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "questions.json")
            self._write(path, table)
            task = SquadTask(self._config(), predict_file=path)
            examples = task.examples(PREDICT_SPLIT)
        windows = task.featurize(examples, self.tokenizer, self._flags["max_seq_length"])
        return task, self._answerer.answer(examples, windows, self._answerer.outputs(windows, shown=False))

    @functools.cached_property
    def _answerer(self) -> Answerer:
        return Answerer(self.make_run(SquadTask(self._config())), AnswerConfig())

    def _config(self) -> SquadConfig:
        names = [field.name for field in dataclasses.fields(SquadConfig)]
        return SquadConfig(**{name: self._flags[name] for name in names if name in self._flags})

    def _table(self, examples: Sequence[Any], labels: Sequence[Any] | None) -> list[dict[str, Any]]:
        """Contexts with their questions as SQuAD's files hold them."""
        table = []
        for number, example in enumerate(examples):
            place = f"example {number}"
            if not isinstance(example, list | tuple) or len(example) != 2:
                raise InputError(f"{place} is {str(example)[:60]!r}, but a pair (question, context) is expected.")
            question, context = (rows.text(part, place) for part in example)
            found = [] if labels is None else _answer(labels[number], context, place)
            is_impossible = labels is not None and not found
            entry = {"id": str(number), "question": question, "answers": found, "is_impossible": is_impossible}
            table.append({"context": context, "question": entry})
        return table

    def _write(self, path: str, table: Sequence[Mapping[str, Any]]) -> None:
        paragraphs = [{"context": row["context"], "qas": [row["question"]]} for row in table]
        files.write_json(path, {"version": "", "data": [{"title": "", "paragraphs": paragraphs}]})


def _answer(answer: Any, context: str, place: str) -> list[dict[str, Any]]:
    """An answer as SQuAD's files hold it; nothing for the empty text."""
    is_pair = isinstance(answer, list | tuple) and len(answer) == 2
    text, start = answer if is_pair else (answer, 0)
    if not isinstance(text, str) or type(start) is not int:  # True and False are also instances of int
        raise InputError(
            f"the answer of {place} is {str(answer)[:60]!r}, but a text or a pair (text, number of its first character "
            'in the context) is expected; "" says that there is no answer.'
        )
    if text.isspace():
        raise InputError(f'the answer of {place} is {text!r}; give words of the context, or "" for no answer.')
    if not is_pair:
        start = context.find(text)
    if context[start : start + len(text)] != text or start < 0:
        raise InputError(f"the answer {text!r} of {place} is not at character {start} of its context.")
    return [{"text": text, "answer_start": start}] if text else []
