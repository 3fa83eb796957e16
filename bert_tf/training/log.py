"""What a run shows and writes down while it trains: progress bar, `metrics.jsonl`, TensorBoard, and curves of them."""

import json
import os
import re
import time
from collections.abc import Mapping, Sequence

import tensorflow as tf

from bert_tf.runtime import files, reporting
from bert_tf.runtime.program import say
from bert_tf.training.contract import TrainingConfig

# What stands in the progress bar; the rest is in the logs.
_SHOWN = re.compile("^loss$|accuracy$|learning_rate|_per_second$|flop_utilisation")


class TrainingLog:
    """The log of a run, from its start or from where it goes on; use it in a `with` block.

    Args:
      config: of the run.
      start: the step that training starts from.
      is_shown: whether this process shows and writes anything; of several workers one does.

    Attributes:
      last: the means of the last steps that were logged.
    """

    def __init__(self, config: TrainingConfig, start: int, is_shown: bool) -> None:
        self._config = config
        self._is_shown = is_shown
        self._evaluated_before = {line["step"] for line in read_metrics(config.output_dir) if line["kind"] == "eval"}
        self._metrics = MetricsLog(config.output_dir, start) if is_shown else None
        self._bar = reporting.progress_bar(config.num_train_steps, "train", initial=start, shown=is_shown)
        self._summaries: dict[str, tf.summary.SummaryWriter] = {}
        self._timed_from = (start, time.perf_counter())
        self._evaluations: list[dict[str, float]] = []
        self.last: dict[str, float] = {}

    def __enter__(self) -> "TrainingLog":
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()
        for writer in self._summaries.values():
            writer.close()

    def advance(self, count: int) -> None:
        """Counts steps in the progress bar."""
        self._bar.update(count)

    def has_evaluation(self, step: int) -> bool:
        """Whether an evaluation after a step was logged before this process began."""
        return step in self._evaluated_before

    def trained(self, step: int, means: Mapping[str, float], is_due: bool) -> None:
        """Takes the means of the steps since the last call; they are written if that is due, or every `log_steps`."""
        steps, seconds = step - self._timed_from[0], time.perf_counter() - self._timed_from[1]
        self._timed_from = (step, time.perf_counter())
        self.last = dict(means) | self._speed(seconds / steps, means)
        self._bar.set_postfix(
            {name: reporting.format_number(value) for name, value in self.last.items() if _SHOWN.search(name)},
            refresh=False,
        )
        if is_due or step % self._config.log_steps == 0:
            self._write("train", step, self.last)

    def evaluated(self, step: int, scores: Mapping[str, float]) -> None:
        """Writes an evaluation's scores."""
        self._evaluations.append({"step": step, **scores})
        self._write("eval", step, scores)
        self._timed_from = (step, time.perf_counter())

    def print_table(self) -> None:
        """Prints the evaluations, or where there were none the last metrics of training."""
        trained = {name: value for name, value in self.last.items() if name not in ("tokens", "teraflops")}
        rows = self._evaluations or ([{"step": self._timed_from[0], **trained}] if trained else [])
        if rows and self._is_shown:
            say(reporting.table(rows))

    def _speed(self, seconds_per_step: float, means: Mapping[str, float]) -> dict[str, float]:
        speed = {
            "sequences_per_second": self._config.train_batch_size / seconds_per_step,
            "tokens_per_second": means["tokens"] / seconds_per_step,
        }
        if self._config.peak_tflops:
            speed["flop_utilisation"] = means["teraflops"] / seconds_per_step / self._config.peak_tflops
        return speed

    def _write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        if self._metrics is None:
            return
        self._metrics.write(kind, step, values)
        if kind not in self._summaries:
            folder = os.path.join(self._config.output_dir, "" if kind == "train" else kind)
            self._summaries[kind] = tf.summary.create_file_writer(folder)
        with self._summaries[kind].as_default(step):
            for name, value in values.items():
                tf.summary.scalar(name, value)
        self._summaries[kind].flush()


class MetricsLog:
    """Appends one JSON object a line to `metrics.jsonl`.

    A run that starts again drops what was logged after the checkpoint it resumes from, so that each step stands once.

    Args:
      folder: the run's; made if need be.
      start_step: where the run starts; lines of later steps are dropped.
    """

    def __init__(self, folder: str, start_step: int) -> None:
        files.make_folder(folder)
        self.path = os.path.join(folder, "metrics.jsonl")
        if files.exists(self.path):
            kept = [line for line in read_metrics(folder) if line["step"] <= start_step]
            with files.replacing(self.path) as writer:
                writer.writelines(json.dumps(line) + "\n" for line in kept)

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Adds a line.

        Args:
          kind: "train" or "eval".
          step: the global step.
          values: by name.
        """
        line = {"kind": kind, "step": step, "time": round(time.time(), 3), **values}
        with files.open_file(self.path, "a") as writer:
            writer.write(json.dumps(line) + "\n")


def read_metrics(folder: str) -> list[dict]:
    """The lines of a run's `metrics.jsonl`; a last line that a kill cut short is left out."""
    path = os.path.join(folder, "metrics.jsonl")
    if not files.exists(path):
        return []
    with files.open_file(path) as reader:
        return [json.loads(line) for line in reader if line.endswith("\n")]


def plot_metrics(folder: str, names: Sequence[str], path: str) -> None:
    """Draws curves of `metrics.jsonl` over the steps, one panel a name, training and evaluation together.

    Args:
      folder: the run's.
      names: which values.
      path: the PNG file to write.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines = read_metrics(folder)
    figure = Figure(figsize=(5 * len(names), 3.5), layout="constrained")
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
    with files.replacing(path, "wb") as writer:
        FigureCanvasAgg(figure).print_png(writer)
