"""Evaluation on the dev set during training: keeps the best weights, and decides when to stop."""

import dataclasses

import numpy as np

from bert_tf.checkpoints import saver
from bert_tf.finetuning.feature_sets import FeatureSet
from bert_tf.finetuning.run import FinetuningRun
from bert_tf.finetuning.task import ModelOutputs
from bert_tf.runtime import reporting
from bert_tf.runtime.errors import InputError, require_whole
from bert_tf.runtime.program import say
from bert_tf.training import evaluation, log
from bert_tf.training.settings import TrainingConfig


@dataclasses.dataclass(frozen=True)
class SelectionConfig:
    """When the dev set is evaluated during training, and how its scores are used.

    Attributes:
      evaluate_every: "epoch", "end" (of training), or a number of steps.
      early_stopping_patience: the number of successive evaluations without a better score after which training stops;
        0 for no early stopping.
      use_best_checkpoint: use the weights with the best score. Early stopping always does this.
      batch_size: the number of examples that each replica evaluates at a time.
    """

    evaluate_every: str = "epoch"
    early_stopping_patience: int = 0
    use_best_checkpoint: bool = False
    batch_size: int = 8

    def __post_init__(self) -> None:
        every = self.evaluate_every
        if every not in ("epoch", "end") and not (every.isdecimal() and int(every)):
            raise InputError(f"--evaluate_every is {every!r}. Use 'epoch', 'end' or a number of steps.")
        require_whole("--early_stopping_patience", self.early_stopping_patience, 0)
        if self.early_stopping_patience and every == "end":
            raise InputError("--early_stopping_patience: stops nothing with --evaluate_every=end. Omit one of them.")

    def eval_steps(self, config: TrainingConfig, num_examples: int) -> int:
        """Returns the number of steps between evaluations; an epoch is rounded to whole steps.

        There is always an evaluation at the end of training too.
        """
        if self.evaluate_every == "end":
            return config.num_train_steps
        if self.evaluate_every == "epoch":
            return max(1, round(num_examples / config.train_batch_size))
        return int(self.evaluate_every)


class DevSelection:
    """Evaluates a run during its training.

    Earlier scores are read from the run's metrics.jsonl, so a resumed run decides as an uninterrupted one.

    Args:
      run: the run that is trained.
      split: the split that is evaluated.
      config: the settings.
    """

    def __init__(self, run: FinetuningRun, split: str, config: SelectionConfig) -> None:
        self.run = run
        self.split = split
        self.config = config

    def evaluate(self, step: int) -> dict[str, float]:
        """Returns the scores after a step, and saves the weights if they are the best so far and must be kept."""
        run, name = self.run, self.run.task.selection_metric
        features = run.features(self.split)
        outputs = run.predict(features, self.config.batch_size, self.split)
        scores = self.scores(outputs, features)
        is_best = evaluation.is_best(run.training_config.output_dir, step, name, scores[name])
        say(
            f"step {step}: {self.split} "
            + ", ".join(f"{key} {reporting.format_number(scores[key])}" for key in (name, "loss") if key in scores)
            + (" (best so far)" if is_best else "")
        )
        if is_best and (self.config.use_best_checkpoint or self.config.early_stopping_patience):
            evaluation.save_best(run.model, run.training_config.output_dir, step, scores)
        return scores

    def scores(self, outputs: ModelOutputs, features: FeatureSet) -> dict[str, float]:
        """Returns the task's scores."""
        return self.run.task.scores(outputs, features)

    def should_stop(self) -> bool:
        """Whether the last `early_stopping_patience` evaluations had no better score than an earlier one."""
        scores = [line[self.run.task.selection_metric] for line in self.history()]
        count = len(scores) - 1 - int(np.argmax(scores)) if scores else 0
        should_stop = 0 < self.config.early_stopping_patience <= count
        if should_stop:
            say(f"Stopping early: the last {count} evaluations had no better {self.run.task.selection_metric}.")
        return should_stop

    def history(self) -> list[dict]:
        """Returns the evaluations so far, as lines of metrics.jsonl."""
        return [line for line in log.read_metrics(self.run.training_config.output_dir) if line["kind"] == "eval"]

    def selected_evaluation(self) -> dict:
        """Returns the evaluation of the weights that are used: the best weights if they were kept, or else the last."""
        history = self.history()
        if saver.latest_checkpoint(self.run.best_folder):
            return max(history, key=lambda line: line[self.run.task.selection_metric])
        return history[-1]
