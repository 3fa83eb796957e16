"""Evaluation on the dev set during training: keeps the best weights, and stops early."""

from typing import Any

import numpy as np

from bert_tf.checkpoints import run_directory
from bert_tf.finetuning.finetuning_config import SelectionConfig
from bert_tf.finetuning.run import FinetuningRun
from bert_tf.runtime import reporting
from bert_tf.runtime.messages import say
from bert_tf.training import evaluation, log


class DevSelection:
    """Evaluates a run during training.

    Earlier scores are read from the run's metrics.jsonl, so a resumed run selects the same weights.

    Args:
      run: the run being trained.
    """

    def __init__(self, run: FinetuningRun) -> None:
        self.run = run
        self.config: SelectionConfig = run.settings.selection

    def evaluate(self, step: int) -> dict[str, float]:
        """Returns the scores after a step. If the settings use the best weights, saves them after the best scores."""
        run, name, split = self.run, self.run.task.metric_that_selects, self.run.task.dev_splits[0]
        scores = run.task.scores(run.evaluate(split, step), run.data.features(split))
        earlier = [line[name] for line in self.history() if line["step"] < step]
        is_best = not earlier or scores[name] > max(earlier)
        say(
            f"step {step}: {split} "
            + ", ".join(f"{key} {reporting.format_number(scores[key])}" for key in (name, "loss") if key in scores)
            + (" (best so far)" if is_best else "")
        )
        if is_best and (self.config.use_best_checkpoint or self.config.early_stopping_patience):
            evaluation.save_best(run.model, run.training_config.output_dir, step, scores)
        return scores

    def stops(self) -> bool:
        """Returns True if the last `early_stopping_patience` evaluations were no better than an earlier evaluation."""
        scores = [line[self.run.task.metric_that_selects] for line in self.history()]
        count = len(scores) - 1 - int(np.argmax(scores)) if scores else 0
        stops = 0 < self.config.early_stopping_patience <= count
        if stops:
            say(f"Stopping early: no better {self.run.task.metric_that_selects} in the last {count} evaluations.")
        return stops

    def history(self) -> list[dict[str, Any]]:
        """Returns the evaluations so far, as lines of metrics.jsonl."""
        return [line for line in log.read_metrics(self.run.training_config.output_dir) if line["kind"] == "eval"]

    def selected_evaluation(self) -> dict[str, Any]:
        """Returns the evaluation of the weights to use: the best weights if they were saved, or else the last."""
        history, output_dir = self.history(), self.run.training_config.output_dir
        if run_directory.evaluated_directory(output_dir) != output_dir:
            return max(history, key=lambda line: line[self.run.task.metric_that_selects])
        return history[-1]
