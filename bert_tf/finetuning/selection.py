"""Looking at the dev set while a model is trained: the best weights, and when to stop."""

import dataclasses

import numpy as np

from bert_tf import checkpoints
from bert_tf.checkpoints import saver
from bert_tf.finetuning.run import FinetuningRun
from bert_tf.runtime import reporting
from bert_tf.runtime.files import InputError
from bert_tf.runtime.program import say
from bert_tf.training import log
from bert_tf.training.contract import TrainingConfig


@dataclasses.dataclass(frozen=True)
class SelectionConfig:
    """When the dev set is looked at, and what follows from it.

    Attributes:
      evaluate_every: "epoch", "end" (of training), or a number of steps.
      early_stopping_patience: evaluations without a better score after which training ends; 0 to train to the end.
      keep_best: use the weights that did best, rather than the last; so it is with early stopping.
      batch_size: examples that are evaluated together.
    """

    evaluate_every: str = "epoch"
    early_stopping_patience: int = 0
    keep_best: bool = False
    batch_size: int = 8

    def __post_init__(self) -> None:
        every = self.evaluate_every
        if every not in ("epoch", "end") and not (every.isdecimal() and int(every)):
            raise InputError(f"--evaluate_every is {every!r}, but 'epoch', 'end' or a number of steps is expected.")
        if self.early_stopping_patience < 0:
            raise InputError(
                f"--early_stopping_patience is {self.early_stopping_patience}, but at least 0 is expected."
            )

    def eval_steps(self, config: TrainingConfig, num_examples: int) -> int:
        """Steps between evaluations; there always is one at the end. An epoch is rounded to whole steps."""
        if self.evaluate_every == "end":
            return config.num_train_steps
        if self.evaluate_every == "epoch":
            return max(1, round(num_examples / config.train_batch_size))
        return int(self.evaluate_every)


class DevSelection:
    """Evaluates a run while it is trained.

    What was seen is read from the run's metrics.jsonl, so a run that resumes decides as if it had never stopped.

    Args:
      run: what is trained.
      split: which is evaluated.
      config: how.
    """

    def __init__(self, run: FinetuningRun, split: str, config: SelectionConfig) -> None:
        self.run = run
        self.split = split
        self.config = config

    def evaluate(self, step: int) -> dict[str, float]:
        """The scores after a step; keeps the weights if they are the best so far and are to be kept."""
        run, name = self.run, self.run.task.selection_metric
        features = run.features(self.split)
        outputs = run.predict(features, self.config.batch_size, self.split)
        scores = run.task.scores(outputs, features)
        before = [line[name] for line in self.history() if line["step"] < step]
        best = not before or scores[name] > max(before)
        say(
            f"step {step}: {self.split} "
            + ", ".join(f"{key} {reporting.format_number(scores[key])}" for key in (name, "loss"))
            + (" (best so far)" if best else "")
        )
        if best and (self.config.keep_best or self.config.early_stopping_patience):
            tensors = {**checkpoints.named_variables(run.model.variables), "global_step": np.int64(step)}
            saver.CheckpointSaver(run.best_folder, keep_checkpoint_max=1).save(step, tensors)
        return scores

    def should_stop(self) -> bool:
        """Whether the last evaluations, as many as the patience says, brought nothing better."""
        waited = self._evaluations_since_best()
        stops = 0 < self.config.early_stopping_patience <= waited
        if stops:
            say(f"Stops early: no better {self.run.task.selection_metric} in {waited} evaluations.")
        return stops

    def _evaluations_since_best(self) -> int:
        scores = [line[self.run.task.selection_metric] for line in self.history()]
        return len(scores) - 1 - int(np.argmax(scores)) if scores else 0

    def history(self) -> list[dict]:
        """The evaluations so far: lines of metrics.jsonl."""
        return [line for line in log.read_metrics(self.run.training_config.output_dir) if line["kind"] == "eval"]

    def chosen(self) -> dict:
        """The evaluation of the weights that the run is judged with: the best if they were kept, or else the last."""
        history = self.history()
        if saver.latest_checkpoint(self.run.best_folder):
            return max(history, key=lambda line: line[self.run.task.selection_metric])
        return history[-1]
