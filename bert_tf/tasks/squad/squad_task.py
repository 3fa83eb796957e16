"""The question-answering task, and its output files.

See `run_squad.py` for the output files.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

from bert_tf.checkpoints import class_names, run_directory, saver
from bert_tf.config import BertConfig
from bert_tf.finetuning import reports
from bert_tf.finetuning.models import SpanModel
from bert_tf.finetuning.run import FinetuningRun
from bert_tf.finetuning.task import ModelOutputs, SplitOutputs, Task
from bert_tf.runtime import files, json_files
from bert_tf.runtime.errors import InputError
from bert_tf.runtime.messages import say
from bert_tf.sequences.text_packer import TextPacker
from bert_tf.tasks.squad.answerer import THRESHOLD_KEY, Answerer, find_null_threshold
from bert_tf.tasks.squad.decoding import decode
from bert_tf.tasks.squad.evaluation import (
    evaluate,
    evaluate_v1,
    evaluate_v2,
    has_answers,
    official_evaluator,
    wrong_answers,
)
from bert_tf.tasks.squad.predictions import SquadPredictions, merge_n_best, read_answers, read_n_best
from bert_tf.tasks.squad.questions import SquadExample, read_squad
from bert_tf.tasks.squad.rules import PREDICT_SPLIT, AnswerConfig, SquadConfig
from bert_tf.tasks.squad.windows import SquadWindows, featurize
from bert_tf.tasks.task_names import SQUAD

PREDICTIONS_FILE = "predictions.json"
N_BEST_FILE = "nbest_predictions.json"
NULL_ODDS_FILE = "null_odds.json"

# A file of questions, or examples.
Source = str | Sequence[SquadExample]


class SquadTask(Task):
    """The SQuAD task.

    Args:
      config: how questions are read and answered.
      train_files: training files, or lists of examples, which are used one after another.
      predict_file: the file, or the list of examples, to answer.
      answer_config: the models that answer, and the no-answer threshold.

    Raises:
      InputError: if a question may leave no room for text.
    """

    name = SQUAD
    architecture = class_names.SPAN
    output_weights = "cls/squad/output_weights"
    counts_examples = True
    null_score_diff_threshold = 0.0  # SQuAD 2.0: with higher null odds, there is no answer
    dev_splits: Sequence[str] = (PREDICT_SPLIT,)
    test_splits: Sequence[str] = dev_splits

    def __init__(
        self,
        config: SquadConfig,
        train_files: Sequence[Source] = (),
        predict_file: Source | None = None,
        answer_config: AnswerConfig = AnswerConfig(),
    ) -> None:
        config.check_lengths()
        self.config = config
        self._sources = {f"train_{number}": source for number, source in enumerate(train_files, start=1)}
        self.train_splits: Sequence[str] = list(self._sources)
        self._sources[PREDICT_SPLIT] = predict_file
        self.answer_config = answer_config
        self.uses_model_of_run: bool = not answer_config.ensemble_dirs

    @property
    def selection_metric(self) -> str:
        """The score that selects weights: F1; for SQuAD 2.0, F1 with the best threshold."""
        return "best_f1" if self.config.version_2_with_negative else "f1"

    def examples(self, split: str) -> list[SquadExample]:
        """Reads the questions of a training file, or of the file to answer."""
        is_training = split != PREDICT_SPLIT
        data = read_squad(self._sources[split], is_training, self.config)
        for line in data.report():
            say(line)
        if not is_training and has_answers(data.examples, self.config.version_2_with_negative):
            official_evaluator(self.config.version_2_with_negative)  # raises an error if the scorer is not installed
        return data.examples

    def check_training_set(self, examples: Sequence[SquadExample]) -> None:
        """Raises an InputError if no question has an answer."""
        if all(example.is_impossible for example in examples):
            raise InputError("--train_file: no question has an answer. Add questions with answers.")

    def featurize(self, examples: Sequence[SquadExample], packer: TextPacker, num_workers: int = 1) -> SquadWindows:
        """Returns the windows of questions. Training windows have the positions of the answers."""
        is_training = any(example.start_position is not None for example in examples)
        config = self.config.replace(max_seq_length=packer.max_seq_length)
        windows = featurize(examples, packer.tokenizer, config, is_training, num_workers)
        for line in windows.report(examples):
            say(line)
        return windows

    def build_model(self, config: BertConfig, **options: Any) -> SpanModel:
        """Returns the encoder with a layer that computes two scores for each token."""
        return SpanModel(config, **options)

    def input_settings(self) -> dict[str, Any]:
        """Returns the settings that influence windows without answers."""
        names = ("version_2_with_negative", "doc_stride", "max_query_length")
        return {name: getattr(self.config, name) for name in names}

    def resume_settings(self) -> dict[str, Any]:
        """Returns the settings that influence training windows. Prediction may use other `answer_text` settings."""
        of_answers = {name: getattr(self.config, name) for name in ("answer_text", "fix_answer_offsets")}
        return self.input_settings() | of_answers

    def decode(
        self, examples: Sequence[SquadExample], features: SquadWindows, outputs: ModelOutputs
    ) -> SquadPredictions:
        """Returns the answers."""
        logits = outputs["start_logits"], outputs["end_logits"]
        return decode(examples, features, *logits, self.config, self.null_score_diff_threshold)

    def compared(self, split: SplitOutputs) -> list[dict[str, Any]]:
        """See `evaluation.wrong_answers`."""
        predictions = self.decode(split.examples, split.features, split.outputs)
        return wrong_answers(split.examples, predictions, self.config.version_2_with_negative)

    def scores(self, outputs: ModelOutputs, features: SquadWindows) -> dict[str, float]:
        """Returns the scores of the best answers. SQuAD 2.0: scores with threshold 0, and with the best threshold."""
        examples = self.split(PREDICT_SPLIT)
        return evaluate(examples, self.decode(examples, features, outputs), self.config.version_2_with_negative)

    def finish(self, run: FinetuningRun, output_dir: str) -> dict[str, dict[str, Any]]:
        """Answers the file of questions. See `answer_file`."""
        settings = run.settings
        is_answered = settings.do_predict or settings.do_eval
        return {"eval": {PREDICT_SPLIT: answer_file(run, self.answer_config, output_dir)}} if is_answered else {}


def answer_file(run: FinetuningRun, config: AnswerConfig, output_dir: str) -> dict[str, float]:
    """Answers the questions of a file, writes the original output files, and evaluates the answers if possible.

    Args:
      run: the run; its task provides the questions.
      config: the models that answer, and the no-answer threshold.
      output_dir: the directory for the results.

    Returns:
      The scores; empty if the right answers are unknown.
    """
    examples = run.task.split(PREDICT_SPLIT)
    if config.merges_lists:
        predictions, model, threshold = _merge(run, config)
    else:
        answerer = Answerer(run, config)
        model, threshold = answerer.description, answerer.task.null_score_diff_threshold
        windows = run.data.features(PREDICT_SPLIT)
        outputs = answerer.predict(windows, run.settings.predict_batch_size)
        predictions = answerer.task.decode(examples, windows, outputs)
    for line in predictions.report():
        say(line)
    is_version_2 = run.task.config.version_2_with_negative
    if is_version_2:
        say(f"The no-answer threshold is {threshold} (--{THRESHOLD_KEY}).")
    paths = [os.path.join(output_dir, name) for name in (PREDICTIONS_FILE, N_BEST_FILE, NULL_ODDS_FILE)]
    paths = paths[: 2 + is_version_2]
    predictions.write(*paths)
    say(f"Wrote {', '.join(paths)}.")
    if not has_answers(examples, is_version_2):
        say("The file has no right answers, so the answers are not evaluated.")
        return {}
    results = evaluate(examples, predictions, is_version_2)
    reports.write_compared(output_dir, PREDICT_SPLIT, wrong_answers(examples, predictions, is_version_2))
    shown = results | ({THRESHOLD_KEY: threshold} if is_version_2 else {})
    reports.report_evaluation(output_dir, "", shown, None, model)
    if is_version_2:
        _keep_threshold(output_dir, results, config, model)
    return results


def evaluate_file(task: SquadTask, path: str, output_dir: str) -> dict[str, float]:
    """Evaluates a `predictions.json` of any system, and writes and returns the scores."""
    judge = evaluate_v2 if task.config.version_2_with_negative else evaluate_v1
    results = judge(task.split(PREDICT_SPLIT), read_answers(path))
    reports.report_evaluation(output_dir, "", results, None)
    return results


def _merge(run: FinetuningRun, config: AnswerConfig) -> tuple[SquadPredictions, str, float]:
    """Merges the n-best lists of finished runs. Returns the answers, the description of the models, the threshold."""
    is_version_2 = run.task.config.version_2_with_negative
    model = f"{config.ensemble_method} of {', '.join(map(_describe_member, config.ensemble_dirs))}"
    threshold = config.null_score_diff_threshold
    if threshold is None:
        threshold = find_null_threshold([run.training_config.output_dir], model)
    n_best = [read_n_best(os.path.join(directory, N_BEST_FILE)) for directory in config.ensemble_dirs]
    odds_files = [os.path.join(directory, NULL_ODDS_FILE) for directory in config.ensemble_dirs if is_version_2]
    odds = [json_files.read(path, "null odds", dict[str, float]) for path in odds_files]
    asked = {example.qas_id for example in run.task.split(PREDICT_SPLIT)}
    for directory, values in zip(config.ensemble_dirs * 2, n_best + odds, strict=False):
        if different := sorted(asked ^ values.keys()):
            raise InputError(
                f"--ensemble_dirs: {directory} has answers to another file than --predict_file. {len(different)} "
                f"questions differ, such as {different[0]!r}. Answer this file with every run first."
            )
    return merge_n_best(n_best, run.task.config.n_best_size, odds, threshold), model, threshold


def _describe_member(directory: str) -> str:
    """Returns a description of a run for the record of a tuned threshold: the directory and a digest of the weights."""
    checkpoint = saver.latest_checkpoint(run_directory.evaluated_directory(directory))
    if not checkpoint:
        return directory
    with files.open_file(f"{checkpoint}.index", "rb") as reader:  # contains the checksums of the weights
        return f"{directory} ({hashlib.sha256(reader.read()).hexdigest()[:12]})"


def _keep_threshold(output_dir: str, results: Mapping[str, float], config: AnswerConfig, model: str) -> None:
    """Stores the tuned threshold. By default, an existing threshold for this model is kept."""
    is_tuned = run_directory.tuned(output_dir).get("model") == model
    if config.tune_null_threshold or (config.tune_null_threshold is None and not is_tuned):
        path, threshold = os.path.join(output_dir, run_directory.TUNED_FILE), results["best_f1_thresh"]
        files.write_json(path, {THRESHOLD_KEY: threshold, "best_f1": results["best_f1"], "model": model})
        say(f"Wrote {path}: later predictions use the threshold {threshold}.")
