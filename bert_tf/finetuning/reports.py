"""The output of a fine-tuning run: tables, learning curves, results and confusion matrices."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_tf.finetuning.explanations import Explanation
from bert_tf.runtime import files, reporting
from bert_tf.runtime.messages import say
from bert_tf.training import log
from bert_tf.training.settings import TrainingConfig

# The largest width and height of a drawn confusion matrix, in inches, without the class names.
_MAX_SIZE = 14.0
# The largest numbers of classes for which the picture contains counts, and class names.
_MAX_NUMBERS, _MAX_NAMES = 25, 100


def announce_training(config: TrainingConfig, num_examples: int, num_windows: int) -> None:
    """Prints the sizes of a run. Long texts are split into windows, so there may be more windows than examples."""
    say(f"***** Running training *****\n  Num examples = {num_examples}")
    if num_windows != num_examples:
        say(f"  Num windows = {num_windows} (long texts are split into windows)")
    say(f"  Batch size = {config.train_batch_size}\n  Num steps = {config.num_train_steps}")


def epoch_table(output_dir: str, steps_per_epoch: float, selection_metric: str) -> list[dict[str, Any]]:
    """Returns a row for each evaluation of a run.

    A row has the epoch, the step, the mean training loss since the previous row, and the dev score. It also has the dev
    loss, if the task computes one.
    """
    rows: list[dict[str, Any]] = []
    losses: list[float] = []
    steps: list[int] = [0]
    for line in log.read_metrics(output_dir):
        if line["kind"] == "train":
            losses.append(line["loss"])
            steps.append(line["step"])
        if line["kind"] != "eval":
            continue
        rows.append(
            {
                "epoch": round(line["step"] / steps_per_epoch, 2),
                "step": line["step"],
                "train loss": float(np.average(losses, weights=np.diff(steps))) if losses else "",
                **({"dev loss": line["loss"]} if "loss" in line else {}),
                f"dev {selection_metric}": line[selection_metric],
            }
        )
        losses, steps = [], steps[-1:]
    return rows


def report_training(output_dir: str, steps_per_epoch: float, selection_metric: str) -> None:
    """Prints the table of a run's evaluations and draws learning_curves.png; does nothing if there are none."""
    rows = epoch_table(output_dir, steps_per_epoch, selection_metric)
    if rows:
        path = os.path.join(output_dir, "learning_curves.png")
        log.plot_metrics(output_dir, list(dict.fromkeys(["loss", selection_metric])), path)
        say(reporting.table(rows))


def report_evaluation(
    output_dir: str,
    suffix: str,
    results: Mapping[str, object],
    confusion: tuple[np.ndarray, Sequence[str]] | None,
    model: str = "",
) -> None:
    """Prints the results of an evaluation and writes them to files.

    Args:
      output_dir: the directory for eval_results.txt (in the original format), eval_results.json and
        confusion_matrix.png.
      suffix: appended to the file names; empty for the first split.
      results: maps the original names of the results to values.
      confusion: the counts of each true class (row) and predicted class (column), and the classes' names.
      model: a description of the model, printed above the results and written to eval_results.json.
    """

    def path(name: str, extension: str) -> str:
        return os.path.join(output_dir, f"{name}{suffix}.{extension}")

    reporting.report_results(results, path("eval_results", "txt"), model)
    contents = dict(results) | ({"model": model} if model else {})
    if confusion is not None:
        counts, labels = confusion
        contents["confusion_matrix"] = {"labels": list(labels), "counts": counts.tolist()}
    files.write_json(path("eval_results", "json"), contents)
    if confusion is not None:  # drawn after the results are written, because drawing may fail
        plot_confusion_matrix(*confusion, path("confusion_matrix", "png"))


def write_compared(output_dir: str, split: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Writes SPLIT_predictions.tsv, unless there are no rows. See `Task.compared`."""
    path = os.path.join(output_dir, f"{split}_predictions.tsv")
    if rows:
        with files.replacing(path) as writer:
            reporting.write_tsv(writer, rows)
        say(f"Wrote {path}.")


def write_explanations(path: str, explanations: Iterable[Sequence[Explanation]]) -> None:
    """Writes a line of JSON for each explanation, with the number of the example, from 0."""
    with files.replacing(path) as writer:
        for number, explanation in ((i, one) for i, several in enumerate(explanations) for one in several):
            line = {"example": number, **explanation._asdict(), "words": [word._asdict() for word in explanation.words]}
            writer.write(json.dumps(line, ensure_ascii=False) + "\n")
    say(f"Wrote {path}.")


def plot_confusion_matrix(counts: np.ndarray, labels: Sequence[str], path: str) -> None:
    """Draws counts [C, C] with true classes as rows and predicted classes as columns, shaded by the row's fractions.

    To limit time and memory, counts are omitted above 25 classes, and names above 100.
    """
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    size = 2.5 + min(0.55 * len(labels), _MAX_SIZE)
    with reporting.picture(path, size, size) as figure:
        axes = figure.add_subplot()
        axes.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0)
        if len(labels) <= _MAX_NAMES:
            font = {"fontsize": 5} if len(labels) > _MAX_NUMBERS else {}
            axes.set_xticks(range(len(labels)), labels, rotation=90 if len(labels) > 3 else 0, **font)
            axes.set_yticks(range(len(labels)), labels, **font)
        axes.set_xlabel("predicted")
        axes.set_ylabel("true")
        for row, column in np.ndindex(*counts.shape) if len(labels) <= _MAX_NUMBERS else ():
            shade = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, str(counts[row, column]), ha="center", va="center", color=shade)
