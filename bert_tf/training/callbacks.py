"""Keras callbacks in the training loop."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import keras
import numpy as np

from bert_tf.runtime.errors import InputError
from bert_tf.runtime.messages import say
from bert_tf.runtime.reporting import format_number
from bert_tf.training.hooks import Hook
from bert_tf.training.log import TrainingLog
from bert_tf.training.step.metric_means import MetricMeans

# Maps callbacks that need a Keras optimizer, save weights or print progress to the arguments to use instead.
_REFUSED = {
    "BackupAndRestore": "output_dir, which saves and resumes the run",
    "LearningRateScheduler": "learning_rate and warmup_proportion",
    "ModelCheckpoint": "output_dir, and use_best_checkpoint for the best weights",
    "OrbaxCheckpoint": "output_dir",
    "ProgbarLogger": "verbose",
    "ReduceLROnPlateau": "learning_rate and warmup_proportion",
    "SwapEMAWeights": "use_best_checkpoint",
    "TensorBoard": "output_dir, which contains the logs for TensorBoard",
}
# Scores that are better if they are smaller.
_DECREASING = "loss$|(^|_)(mae|rmse)$|perplexity"
_BATCH_HOOKS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")


def checked(callbacks: Any, verbose: int) -> list[keras.callbacks.Callback]:
    """Returns the callbacks of a call of `fit` as a list.

    Args:
      callbacks: a callback, a list of callbacks, or None.
      verbose: if 2, adds a callback that prints a line for each epoch.

    Raises:
      InputError: if an object is not a callback, needs a Keras optimizer or saves weights.
    """
    listed = list(callbacks) if isinstance(callbacks, Iterable) else [] if callbacks is None else [callbacks]
    for number, callback in enumerate(listed):
        kinds = [kind.__name__ for kind in type(callback).__mro__]
        if not isinstance(callback, keras.callbacks.Callback):
            raise InputError(f"callbacks[{number}] is a {kinds[0]}. Use a keras.callbacks.Callback.")
        for name in set(kinds) & set(_REFUSED):
            raise InputError(f"callbacks: {name} can't be used here. Use {_REFUSED[name]}.", "callbacks")
        if isinstance(callback, keras.callbacks.EarlyStopping) and callback.mode == "auto":
            # Keras reads the direction from the metrics of a compiled model.
            callback.mode = "min" if re.search(_DECREASING, callback.monitor) else "max"
        if getattr(callback, "restore_best_weights", False):
            problem = f"{kinds[0]}(restore_best_weights=True) is not supported"
            raise InputError(f"callbacks: {problem}. Pass use_best_checkpoint=True to fit().", "callbacks")
    return [*listed, *([keras.callbacks.LambdaCallback(on_epoch_end=_print_epoch)] if verbose == 2 else [])]


def _print_epoch(epoch: int, logs: Mapping[str, float]) -> None:
    values = ", ".join(f"{name} {format_number(value)}" for name, value in logs.items())
    say(f"Epoch {epoch + 1}: {values}")


class _Model:
    """The model that is passed to callbacks. A callback can stop training by setting `stop_training`."""

    stop_training = False

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"callbacks: the model of a callback has no {name!r}. It has only 'stop_training'.")


class Callbacks(Hook):
    """The callbacks of a run.

    For callbacks, an epoch ends after every `every` steps, and when training ends. The logs of an epoch are the means
    over its steps and, with the prefix "val_", the scores after its last step. The logs are also written to
    metrics.jsonl. When a run is resumed, the callbacks are called again for the finished epochs, so EarlyStopping
    stops at the same epoch as in an uninterrupted run. The means of the interrupted epoch begin at the checkpoint.

    The logs of a batch are the means since the epoch began, as in Keras. They are read from the device only if a
    callback has a method for batches. On a TPU, one device loop runs several steps. The methods for batches are then
    called once per device loop, with the index of the last step.

    Args:
      callbacks: the callbacks.
      every: number of steps in an epoch.
    """

    def __init__(self, callbacks: Iterable[keras.callbacks.Callback] = (), every: int = 1) -> None:
        self.every = every
        self._model = _Model()
        self._list = keras.callbacks.CallbackList([*callbacks], model=self._model)
        self._has_batch_hooks = any(
            not getattr(getattr(callback, hook), "_is_default", False)
            for callback in self._list.callbacks
            for hook in _BATCH_HOOKS
        )

    @property
    def should_stop(self) -> bool:
        """Whether a callback has stopped the training."""
        return self._model.stop_training

    def begin(self, log: TrainingLog, metrics: MetricMeans, start: int, end: int) -> None:
        """Begins training and replays the finished epochs."""
        self._log, self._metrics, self._step, self._end = log, metrics, start, end
        # As in Keras, the loss comes first. The names after "loss" are not metrics of the model, and are omitted.
        loss_index = metrics.names.index("loss")
        self._columns = {metrics.names[i]: i for i in (loss_index, *range(loss_index))}
        self._list.set_params({"epochs": -(-end // self.every), "steps": self.every, "verbose": 0})
        self._list.on_train_begin()
        finished = log.lines("epoch")
        for line in finished:
            self._list.on_epoch_begin(line["epoch"])
            self._list.on_epoch_end(line["epoch"], line["logs"])
            self._model.stop_training |= line["stopped"]
        if start and self.is_due(start, end) and not any(line["step"] == start for line in finished):
            self.at(start, end)
        else:
            self._begin_epoch(end)

    def after_steps(self, count: int) -> None:
        """Ends a batch; on a TPU, a device loop of `count` steps."""
        self._step += count
        if self._has_batch_hooks:
            sums = self._metrics.taken + self._metrics.sums()
            self._list.on_train_batch_end((self._step - 1) % self.every, self._means(sums))
            if not (self.should_stop or self.is_due(self._step, self._end)):
                self._list.on_train_batch_begin(self._step % self.every)

    def at(self, step: int, end: int) -> None:
        """Ends an epoch. Begins the next one unless `end` is reached."""
        scores = {f"val_{name}": value for name, value in self._log.scores(step).items()}
        epoch, logs = (step - 1) // self.every, self._means(self._metrics.taken) | scores
        self._list.on_epoch_end(epoch, dict(logs))
        self._log.log_epoch(step, {"epoch": epoch, "stopped": self.should_stop, "logs": logs})
        self._begin_epoch(end)

    def finish(self) -> None:
        """Ends the training."""
        self._list.on_train_end()

    def _begin_epoch(self, end: int) -> None:
        self._metrics.taken[:] = 0
        if self._step < end and not self.should_stop:
            self._list.on_epoch_begin(self._step // self.every)
            if self._has_batch_hooks:
                self._list.on_train_batch_begin(self._step % self.every)

    def _means(self, sums: np.ndarray) -> dict[str, float]:
        return {name: float(sums[i, 0] / sums[i, 1]) for name, i in self._columns.items() if sums[i, 1]}
