"""The output of a training run: progress bar, `metrics.jsonl`, TensorBoard, other loggers, and plots."""

import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import tensorflow as tf

from bert_tf.distribution import strategies
from bert_tf.model import estimates
from bert_tf.runtime import files, json_files, reporting
from bert_tf.runtime.errors import named
from bert_tf.runtime.messages import say
from bert_tf.training.errors import Preempted
from bert_tf.training.loggers import Loggers
from bert_tf.training.settings import TrainingConfig

# The progress bar shows only these metrics; the log contains all.
_PROGRESS_BAR_METRICS = re.compile("^loss$|accuracy$|learning_rate|_per_second$|flop_utilisation")


def with_known_peak(config: TrainingConfig, strategy: tf.distribute.Strategy) -> TrainingConfig:
    """Sets `peak_tflops` to the peak of all devices, if it is 0 and the devices are known GPUs."""
    if config.peak_tflops or strategies.devices(strategy)["device"] != "GPU":
        return config
    gpu = next(iter(tf.config.list_physical_devices("GPU")))
    name = tf.config.experimental.get_device_details(gpu).get("device_name", "")
    return config.replace(peak_tflops=estimates.peak_tflops(name, config.dtype) * strategy.num_replicas_in_sync)


class TrainingLog:
    """The log of a new or resumed run. Use it in a `with` block.

    Args:
      config: the run's settings.
      start: the number of steps finished by earlier processes.
      is_shown: whether this process prints and writes; True for only one of several workers.

    Attributes:
      last: the latest means of the metrics.
    """

    def __init__(self, config: TrainingConfig, start: int, is_shown: bool) -> None:
        self._config = config
        self._is_shown = is_shown
        self._scores = {
            line["step"]: {name: value for name, value in line.items() if name not in ("kind", "step", "time")}
            for line in self.lines("eval")
            if line["step"] <= start
        }
        self._metrics = MetricsLog(config.output_dir, start) if is_shown else None
        description = "train (building the graph)"
        self._bar = reporting.progress_bar(config.num_train_steps, description, initial=start, shown=is_shown)
        self._summaries: dict[str, tf.summary.SummaryWriter] = {}
        self._timer_start = (start, time.perf_counter())
        self._first_step: dict[str, float] | None = None
        self._is_profiling = False
        self._evaluations: list[dict[str, float]] = []
        self.last: dict[str, float] = {}
        self._loggers = Loggers(config.report_to if is_shown else "", config.output_dir, start)

    def __enter__(self) -> "TrainingLog":
        return self

    def __exit__(self, *error: object) -> None:
        if self._is_profiling:
            tf.profiler.experimental.stop()
        self._bar.close()
        for writer in self._summaries.values():
            writer.close()
        self._loggers.end("FINISHED" if error[0] is None else "KILLED" if error[0] is Preempted else "FAILED")

    def profile(self, step: int) -> None:
        """Starts or stops the profiler trace for TensorBoard, if due after a step."""
        first, last = self._config.traced_steps or (0, 0)
        is_due = self._is_shown and first <= step < last
        if is_due and not self._is_profiling:
            tf.profiler.experimental.start(self._config.output_dir)
        elif self._is_profiling and not is_due:
            tf.profiler.experimental.stop()
        self._is_profiling = is_due

    def advance(self, count: int) -> None:
        """Advances the progress bar. The first steps include tracing and compiling the graph."""
        if self._first_step is None:
            self._first_step = {"first_step_seconds": time.perf_counter() - self._timer_start[1]}
            self._bar.set_description_str("train", refresh=False)
        self._bar.update(count)

    def scores(self, step: int) -> Mapping[str, float]:
        """Returns the scores of a step, evaluated by this or an earlier process; empty if there are none."""
        return self._scores.get(step, {})

    def log_training(self, step: int, means: Mapping[str, float], is_due: bool) -> None:
        """Takes the means since the last call, and writes them every `log_steps` steps or if `is_due` is True."""
        steps, seconds = step - self._timer_start[0], time.perf_counter() - self._timer_start[1]
        self._timer_start = (step, time.perf_counter())
        self.last = dict(means) | self._speed(step - 1, seconds / steps, means)
        self._bar.set_postfix(
            {
                name: reporting.format_number(value)
                for name, value in self.last.items()
                if _PROGRESS_BAR_METRICS.search(name)
            },
            refresh=False,
        )
        if is_due or step % self._config.log_steps == 0:
            self._write("train", step, self.last | (self._first_step or {}))
            self._first_step = {}

    def report_skipped(self, step: int, data: str) -> None:
        """Reports that a step was skipped because it was not finite; `data` describes its examples."""
        if self._is_shown:
            say(f"Warning: skipped step {step}, because its loss or gradient is not finite. Data: {data}.")

    def log_evaluation(self, step: int, scores: Mapping[str, float]) -> None:
        """Writes the scores of an evaluation."""
        self._evaluations.append({"step": step, **scores})
        self._scores[step] = scores
        self._write("eval", step, scores)
        self._timer_start = (step, time.perf_counter())

    def log_epoch(self, step: int, values: Mapping[str, object]) -> None:
        """Writes the metrics that the callbacks got at the end of an epoch."""
        if self._metrics:
            self._metrics.write("epoch", step, values)

    def lines(self, kind: str) -> list[dict[str, Any]]:
        """Returns the lines of metrics.jsonl with this `kind`."""
        return [line for line in read_metrics(self._config.output_dir) if line["kind"] == kind]

    def print_table(self) -> None:
        """Prints a table of all evaluations; if there were none, the last training metrics.

        Workers that do not write results print one line instead.
        """
        if not self._is_shown:
            say(f"Trained to step {self._timer_start[0]}. The first worker writes checkpoints, metrics and results.")
        trained = {name: value for name, value in self.last.items() if name not in ("tokens", "teraflops")}
        rows = self._evaluations or ([{"step": self._timer_start[0], **trained}] if trained else [])
        if rows and self._is_shown:
            say(reporting.table(rows))

    def _speed(self, step: int, seconds_per_step: float, means: Mapping[str, float]) -> dict[str, float]:
        speed = {
            "sequences_per_second": self._config.batch_at(step).train_batch_size / seconds_per_step,
            "tokens_per_second": means["tokens"] / seconds_per_step,
        }
        if self._config.peak_tflops:
            speed["flop_utilisation"] = means["teraflops"] / seconds_per_step / self._config.peak_tflops
        return speed

    def _write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        if self._metrics is None:
            return
        self._metrics.write(kind, step, values)
        self._loggers.log(kind, step, values)
        if kind not in self._summaries:
            directory = os.path.join(self._config.output_dir, "" if kind == "train" else kind)
            self._summaries[kind] = tf.summary.create_file_writer(directory)
        with self._summaries[kind].as_default(step):
            for name, value in values.items():
                tf.summary.scalar(name, value)
        self._summaries[kind].flush()


class _Metrics(TypedDict):
    kind: str
    step: int


class MetricsLog:
    """Appends lines to `metrics.jsonl`; each is a JSON object.

    When a run resumes from a checkpoint, the lines of later steps are removed, because the steps are repeated.

    Args:
      directory: the run directory; created if it doesn't exist.
      start_step: the step that the run starts from.
    """

    def __init__(self, directory: str, start_step: int) -> None:
        files.make_directory(directory)
        self.path: str = os.path.join(directory, "metrics.jsonl")
        if files.exists(self.path):
            lines = [line for line in read_metrics(directory) if line["step"] <= start_step]
            with files.replacing(self.path) as writer:
                writer.writelines(json.dumps(line) + "\n" for line in lines)

    def write(self, kind: str, step: int, values: Mapping[str, object]) -> None:
        """Appends a line.

        Args:
          kind: "train", "eval" or "epoch".
          step: the global step.
          values: the metrics by name.
        """
        line = {"kind": kind, "step": step, "time": round(time.time(), 3), **values}
        with named(self.path), files.open_file(self.path, "a") as writer:
            writer.write(json.dumps(line) + "\n")


def read_metrics(directory: str) -> list[dict[str, Any]]:
    """Reads the lines of a run's `metrics.jsonl`. An incomplete last line (after a kill) is ignored."""
    return json_files.read_lines(os.path.join(directory, "metrics.jsonl"), "--output_dir", _Metrics)


def plot_metrics(directory: str, names: Sequence[str], path: str) -> None:
    """Plots metrics over the steps, with one panel per metric for training and evaluation.

    Args:
      directory: the run directory, with `metrics.jsonl`.
      names: the metrics.
      path: the PNG file to write.
    """
    lines = read_metrics(directory)
    with reporting.picture(path, 5 * len(names), 3.5) as figure:
        for i, name in enumerate(names):
            axes = figure.add_subplot(1, len(names), i + 1)
            for kind, style in (("train", "-"), ("eval", "o--")):
                points = [(line["step"], line[name]) for line in lines if line["kind"] == kind and name in line]
                if points:
                    axes.plot(*zip(*points, strict=True), style, markersize=4, label=kind)
            axes.set_xlabel("step")
            axes.set_title(name.replace("_", " "))
            axes.grid(alpha=0.3)
            if axes.lines:
                axes.legend()
