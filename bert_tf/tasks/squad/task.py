"""The SQuAD task of the fine-tuning loop: it reads questions, cuts windows, builds the model, and decodes answers."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from bert_tf.config import BertConfig
from bert_tf.finetuning.models import SpanModel
from bert_tf.finetuning.task import ModelOutputs
from bert_tf.runtime.files import InputError
from bert_tf.runtime.program import say
from bert_tf.tasks.squad.decoding import decode
from bert_tf.tasks.squad.examples import SquadData, SquadExample, check_answer_text, read_squad
from bert_tf.tasks.squad.predictions import SquadPredictions
from bert_tf.tasks.squad.rules import check_decoding, check_window_lengths
from bert_tf.tasks.squad.windows import SquadWindows, featurize
from bert_tf.tokenization import FullTokenizer

PREDICT_SPLIT = "predict"


@dataclasses.dataclass(frozen=True)
class SquadConfig:
    """How questions are read, cut into windows and answered; the names are those of the flags.

    Attributes:
      version_2_with_negative: whether a question may have no answer.
      max_seq_length: the longest window, in tokens.
      doc_stride: pieces between the begins of two windows.
      max_query_length: the longest question, in pieces; longer ones are cut at the end.
      n_best_size: how many start and end positions of a window are paired, and how many answers are listed.
      max_answer_length: the longest answer, in pieces.
      answer_text: "release" or "offsets"; see `read_squad`, `featurize` and `decode`.
      fix_answer_offsets: whether a training answer is used if it isn't at the place that its file gives.
      pad_to_max_seq_length: whether every window is padded to `max_seq_length`, as in the release; see `decode`.
      verbose_logging: whether the log names answers that can't be aligned with the text.

    Raises:
      InputError: if the lengths leave no room for text, or no answer could ever be found.
    """

    version_2_with_negative: bool = False
    max_seq_length: int = 384
    doc_stride: int = 128
    max_query_length: int = 64
    n_best_size: int = 20
    max_answer_length: int = 30
    answer_text: str = "release"
    fix_answer_offsets: bool = False
    pad_to_max_seq_length: bool = False
    verbose_logging: bool = False

    def __post_init__(self) -> None:
        check_window_lengths(self.max_seq_length, self.max_query_length)
        check_decoding(self.n_best_size, self.max_answer_length)
        check_answer_text(self.answer_text)


class SquadTask:
    """Files of questions, and the steps from a question to an answer.

    Args:
      config: how questions are read and answered.
      train_files: the files to train on, in turn.
      predict_file: the file to be answered.
    """

    name = "squad"
    independent = False  # a question may have several windows

    def __init__(self, config: SquadConfig, train_files: Sequence[str] = (), predict_file: str | None = None) -> None:
        self.config = config
        self._train_files = {f"train_{number}": path for number, path in enumerate(train_files, start=1)}
        self._predict_file = predict_file
        self._predict_data: SquadData | None = None

    @property
    def train_splits(self) -> list[str]:
        """The names of the training files' splits."""
        if not self._train_files:
            raise InputError("--train_file is needed with --do_train, but it is not given.")
        return list(self._train_files)

    @property
    def articles(self) -> list[dict[str, Any]]:
        """The "data" of the file to be answered."""
        return self._read_predict_file().articles

    def examples(self, split: str) -> list[SquadExample]:
        """The questions of a training file, or of the file to be answered."""
        if split == PREDICT_SPLIT:
            return self._read_predict_file().examples
        return self._read(self._train_files[split], is_training=True).examples

    def featurize(
        self, examples: Sequence[SquadExample], tokenizer: FullTokenizer, max_seq_length: int, num_workers: int = 1
    ) -> SquadWindows:
        """The windows of some questions, with the positions of the answers if the answers were read."""
        windows = featurize(
            examples,
            tokenizer,
            max_seq_length,
            doc_stride=self.config.doc_stride,
            max_query_length=self.config.max_query_length,
            is_training=any(example.start_position is not None for example in examples),
            answer_text=self.config.answer_text,
            num_workers=num_workers,
        )
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

    def resume_settings(self) -> dict[str, Any]:
        """The settings that change the weights."""
        return self.input_settings()

    def answer(
        self,
        examples: Sequence[SquadExample],
        windows: SquadWindows,
        outputs: ModelOutputs,
        tokenizer: FullTokenizer,
        null_score_diff_threshold: float = 0.0,
        answer_text: str | None = None,
    ) -> SquadPredictions:
        """Answers questions.

        Args:
          examples: the questions.
          windows: made from them.
          outputs: `start_logits` and `end_logits` [W, T], or their substitutes.
          tokenizer: the model's.
          null_score_diff_threshold: odds above it mean that there is no answer.
          answer_text: "release" or "offsets"; None for the configured one.
        """
        config = self.config
        return decode(
            examples,
            windows,
            outputs["start_logits"],
            outputs["end_logits"],
            tokenizer,
            n_best_size=config.n_best_size,
            max_answer_length=config.max_answer_length,
            version_2_with_negative=config.version_2_with_negative,
            null_score_diff_threshold=null_score_diff_threshold,
            answer_text=answer_text or config.answer_text,
            rank_padding=config.pad_to_max_seq_length,
            verbose_logging=config.verbose_logging,
        )

    def _read_predict_file(self) -> SquadData:
        if self._predict_data is None:
            if not self._predict_file:
                raise InputError("--predict_file is needed with --do_predict, but it is not given.")
            self._predict_data = self._read(self._predict_file, is_training=False)
        return self._predict_data

    def _read(self, path: str, is_training: bool) -> SquadData:
        config = self.config
        data = read_squad(
            path, is_training, config.version_2_with_negative, config.answer_text, config.fix_answer_offsets
        )
        for line in data.report():
            say(line)
        return data
