"""What a run shows and writes down: progress bar, `metrics.jsonl`, tables, plots."""

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence

from tqdm import tqdm

from bert_tf.runtime import files
from bert_tf.runtime.program import say


def progress_bar(total: int | None, what: str, initial: int = 0, unit: str = "step", shown: bool = True) -> tqdm:
    """A bar with counts, rate and ETA on standard error; quiet where nobody watches a terminal but every minute.

    Bytes (unit "B") are shown as kB, MB...
    """
    interval = 0.5 if sys.stderr.isatty() else 60.0
    return tqdm(
        total=total,
        initial=initial,
        desc=what,
        unit=unit,
        unit_scale=unit == "B",
        mininterval=interval,
        maxinterval=max(10.0, interval),
        dynamic_ncols=True,
        disable=not shown,
        file=sys.stderr,
    )


def format_number(value: float | int | str) -> str:
    """Four significant digits for floats, everything else as it is."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows with the same keys as an aligned text table."""
    header = list(rows[0])
    cells = [header] + [[format_number(row.get(key, "")) for key in header] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(header))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


class MetricsLog:
    """Appends one JSON object a line to `metrics.jsonl`.

    A run that starts again drops what was logged after the checkpoint it resumes from, so that each step stands once.

    Args:
      folder: the run's.
      start_step: where the run starts; lines of later steps are dropped.
    """

    def __init__(self, folder: str, start_step: int) -> None:
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


def report_results(results: Mapping[str, object], path: str) -> None:
    """Prints an evaluation's results, and writes them as the release's `eval_results.txt`: "name = value", sorted."""
    say(f"***** Eval results ({path}) *****")
    lines = [f"{name} = {results[name]}" for name in sorted(results)]
    for line in lines:
        say(f"  {line}")
    with files.replacing(path) as writer:
        writer.writelines(f"{line}\n" for line in lines)
