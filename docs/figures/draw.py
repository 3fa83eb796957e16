"""Draws the figures of the results from the CSV files in this directory.

    python docs/figures/draw.py

Sources of the CSV files:

- confusion.csv: the counts in build/quickstart/authors/eval_results.json
- attention.csv: the table that the example in docs/howto/embeddings.md prints
- losses.csv: metrics.jsonl of the runs in docs/howto/expected-losses.md
- other files: the pages in docs/results

The SVG files have no background and grey text, so they are readable on light and dark pages.
"""

import csv
import pathlib

import matplotlib

matplotlib.use("svg")

from matplotlib import pyplot as plt

DIRECTORY = pathlib.Path(__file__).parent
GREY, COLOURS = "#808080", ("#4c8bf5", "#e8833a", "#2ca089")


def main() -> None:
    """Draws all figures."""
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "bert-tf", "font.size": 10, "text.color": GREY})
    plt.rcParams.update({"axes.edgecolor": GREY, "axes.labelcolor": GREY, "xtick.color": GREY, "ytick.color": GREY})
    plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False})
    draw_pretraining(read("pretraining"))
    draw_losses(read("losses"))
    draw_figure_5(read("figure5"))
    draw_speed(read("speed"))
    draw_matrix("confusion", xlabel="predicted", ylabel="true")
    draw_matrix("attention", xlabel="attended token", ylabel="token")


def read(name: str) -> list[dict[str, str]]:
    """Returns the rows of a CSV file."""
    with open(DIRECTORY / f"{name}.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write(figure: plt.Figure, name: str) -> None:
    """Writes a figure as SVG."""
    figure.tight_layout()
    figure.savefig(DIRECTORY / f"{name}.svg", transparent=True, metadata={"Date": None})
    plt.close(figure)


def draw_pretraining(rows: list[dict[str, str]]) -> None:
    """Draws the held-out accuracy of pre-training, with one colour for each sequence length."""
    figure, axes = plt.subplots(figsize=(6, 3))
    for colour, length in zip(COLOURS, ("32", "64", "128"), strict=True):
        phase = [row for row in rows if row["length"] == length]
        steps, accuracies = ([float(row[name]) for row in phase] for name in ("steps", "accuracy"))
        axes.plot(steps, accuracies, marker="o", markersize=3, color=colour, label=f"length {length}")
    axes.set(xlabel="steps", ylabel="masked-LM accuracy, %", ylim=(10, 30))
    axes.legend(loc="lower right")
    write(figure, "pretraining")


def draw_losses(rows: list[dict[str, str]]) -> None:
    """Draws the masked-LM losses of the quickstart with correct and wrong settings, and of a run on books.

    The dotted lines are the losses of a model that predicts the token frequencies.
    """
    figure, panels = plt.subplots(1, 2, figsize=(8, 3.4), sharey=True, width_ratios=(3, 2))
    runs = list(dict.fromkeys(row["run"] for row in rows))
    for axes, of_books, baseline in zip(panels, (False, True), (6.334, 6.089), strict=True):
        for number, run in enumerate(run for run in runs if run.startswith("books") == of_books):
            line = [row for row in rows if row["run"] == run]
            steps, losses = ([float(row[name]) for row in line] for name in ("steps", "loss"))
            style = ("-", "--")[number // len(COLOURS)]
            axes.plot(steps, losses, style, color=COLOURS[number % len(COLOURS)], linewidth=1.2, label=run)
        axes.axhline(baseline, color=GREY, linewidth=0.8, linestyle=":")
        axes.set(xlabel="steps")
        axes.legend(loc="upper right", fontsize=8)
    panels[0].set(ylabel="masked-LM loss, nats", ylim=(3.8, 9.6))
    write(figure, "losses")


def draw_figure_5(rows: list[dict[str, str]]) -> None:
    """Draws dev accuracies after fractions of the pre-training steps, with one panel for each machine."""
    figure, panels = plt.subplots(1, 2, figsize=(7, 3), sharey=True)
    for axes, (machine, title) in zip(panels, (("first", "first machine"), ("C", "machine C")), strict=True):
        for colour, objective in zip(COLOURS, ("masked LM", "left to right"), strict=False):
            line = [row for row in rows if row["machine"] == machine and row["objective"] == objective]
            shares, means, deviations = ([float(row[name]) for row in line] for name in ("share", "mean", "deviation"))
            axes.errorbar(
                shares, means, yerr=deviations, color=colour, capsize=2, marker="o", markersize=3, label=objective
            )
        axes.set(xlabel="share of the pre-training steps, %", title=title)
    panels[0].set(ylabel="QNLI dev accuracy, %")
    panels[1].legend(loc="lower right")
    write(figure, "figure5")


def draw_speed(rows: list[dict[str, str]]) -> None:
    """Draws the ratios of speeds as bars."""
    figure, axes = plt.subplots(figsize=(7, 2.6))
    colours = dict(zip(("original (float32)", "transformers"), COLOURS, strict=False))
    for position, row in enumerate(reversed(rows)):
        axes.barh(position, float(row["ratio"]), color=colours[row["compared_with"]])
        axes.text(float(row["ratio"]) + 0.03, position, row["ratio"], va="center")
    axes.set_yticks(
        range(len(rows)), [f"{row['what']}\nagainst {row['compared_with']}" for row in reversed(rows)], fontsize=7
    )
    axes.axvline(1, color=GREY, linewidth=0.8)
    axes.set(xlabel="times as fast")
    write(figure, "speed")


def draw_matrix(name: str, xlabel: str, ylabel: str) -> None:
    """Draws a table whose first column has names. The shade of a cell is its fraction of the row's sum."""
    rows = read(name)
    names, *columns = rows[0]
    numbers = [[float(row[column]) for column in columns] for row in rows]
    shares = [[number / sum(row) for number in row] for row in numbers]
    figure, axes = plt.subplots(figsize=(1.6 + 0.45 * len(columns), 1.3 + 0.4 * len(rows)))
    axes.pcolormesh(shares, cmap="Blues", vmin=0, vmax=1)
    for y, row in enumerate(rows):
        for x, column in enumerate(columns):
            shade = "white" if shares[y][x] > 0.5 else "black"
            axes.text(x + 0.5, y + 0.5, row[column], ha="center", va="center", fontsize=8, color=shade)
    axes.set_xticks([x + 0.5 for x in range(len(columns))], columns, rotation=90)
    axes.set_yticks([y + 0.5 for y in range(len(rows))], [row[names] for row in rows])
    axes.invert_yaxis()
    axes.set(xlabel=xlabel, ylabel=ylabel)
    write(figure, name)


if __name__ == "__main__":
    main()
