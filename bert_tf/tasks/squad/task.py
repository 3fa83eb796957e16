"""The SQuAD task of the fine-tuning loop: it reads questions, cuts windows and builds the model."""

import functools
from collections.abc import Sequence
from typing import Any

from bert_tf.config import BertConfig
from bert_tf.finetuning.models import SpanModel
from bert_tf.finetuning.run import FinetuningRun
from bert_tf.finetuning.task import ModelOutputs, Task
from bert_tf.runtime.files import InputError
from bert_tf.runtime.program import say
from bert_tf.tasks.squad import answers
from bert_tf.tasks.squad.decoding import decode
from bert_tf.tasks.squad.evaluation import evaluate, has_answers, official_evaluator
from bert_tf.tasks.squad.examples import Article, SquadData, SquadExample, read_squad
from bert_tf.tasks.squad.rules import PREDICT_SPLIT, AnswerConfig, SquadConfig
from bert_tf.tasks.squad.windows import SquadWindows, featurize
from bert_tf.tokenization import FullTokenizer


class SquadTask(Task):
    """Files of questions, and the steps from a question to an answer.

    Args:
      config: how questions are read and answered.
      train_files: the files to train on, in turn, or their "data".
      predict_file: the file to be answered, or its "data".
      answer_config: the models that answer, and their settings.

    Raises:
      InputError: if a question may leave no room for text.
    """

    name = "squad"
    independent = False  # a question may have several windows
    counts_examples = True
    dev_splits = test_splits = (PREDICT_SPLIT,)

    def __init__(
        self,
        config: SquadConfig,
        train_files: Sequence[str | list[Article]] = (),
        predict_file: str | list[Article] | None = None,
        answer_config: AnswerConfig = AnswerConfig(),
    ) -> None:
        config.check_lengths()
        self.config = config
        self._train_files = {f"train_{number}": path for number, path in enumerate(train_files, start=1)}
        self._predict_file = predict_file
        self.answer_config = answer_config
        self._tokenizer: FullTokenizer | None = None

    @property
    def train_splits(self) -> list[str]:
        """The names of the training files' splits."""
        if not self._train_files:
            raise InputError("--train_file is needed with --do_train. Name the questions to train on.")
        return list(self._train_files)

    @property
    def selection_metric(self) -> str:
        """The score that weights are chosen by: the F1; of SQuAD 2.0, that with the best threshold."""
        return "best_f1" if self.config.version_2_with_negative else "f1"

    @property
    def articles(self) -> list[dict[str, Any]]:
        """The "data" of the file to be answered."""
        return self._predict_data.articles

    def examples(self, split: str) -> list[SquadExample]:
        """The questions of a training file, or of the file to be answered."""
        if split == PREDICT_SPLIT:
            return self._predict_data.examples
        return self._read(self._train_files[split], is_training=True).examples

    def featurize(
        self, examples: Sequence[SquadExample], tokenizer: FullTokenizer, max_seq_length: int, num_workers: int = 1
    ) -> SquadWindows:
        """The windows of some questions, with the positions of the answers if the answers were read."""
        self._tokenizer = tokenizer
        is_training = any(example.start_position is not None for example in examples)
        config = self.config.replace(max_seq_length=max_seq_length)
        windows = featurize(examples, tokenizer, config, is_training, num_workers)
        for line in windows.report(examples):
            say(line)
        return windows

    def build_model(self, config: BertConfig, **options) -> SpanModel:
        """The encoder with a layer that gives two scores for each token."""
        return SpanModel(config, **options)

    def input_settings(self) -> dict[str, Any]:
        """The settings that change the training windows."""
        names = ("version_2_with_negative", "doc_stride", "max_query_length", "answer_text", "fix_answer_offsets")
        return {name: getattr(self.config, name) for name in names}

    def scores(self, outputs: ModelOutputs, features: SquadWindows) -> dict[str, float]:
        """The scores of the best answers; of SQuAD 2.0 with the threshold 0, and with the best one."""
        logits = outputs["start_logits"], outputs["end_logits"]
        predictions = decode(self.examples(PREDICT_SPLIT), features, *logits, self._tokenizer, self.config)
        return evaluate(self.articles, predictions, self.config.version_2_with_negative)

    def finish(self, run: FinetuningRun, output_dir: str) -> dict[str, dict]:
        """Answers the file with questions; see `answers.predict`."""
        settings = run.settings
        is_answered = settings.do_predict or settings.do_eval
        return {"eval": {PREDICT_SPLIT: answers.predict(run, self.answer_config, output_dir)}} if is_answered else {}

    @functools.cached_property
    def _predict_data(self) -> SquadData:
        if not self._predict_file:
            raise InputError("--predict_file is needed. Name the questions to answer.")
        data = self._read(self._predict_file, is_training=False)
        if has_answers(data.articles):
            official_evaluator(self.config.version_2_with_negative)  # which must be installed
        return data

    def _read(self, source: str | list[Article], is_training: bool) -> SquadData:
        data = read_squad(source, is_training, self.config)
        for line in data.report():
            say(line)
        return data
