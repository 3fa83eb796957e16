"""The plan of a table, and the table itself beside the paper's: Markdown, CSV, a figure, and a test of its claims."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

from bert_tf.runtime import files, reporting
from bert_tf.tasks.tables import write_table
from experiments.assembly import Cell
from experiments.pieces import Piece, in_order
from experiments.runner import Runner
from experiments.schema import Claim, Experiment, Scale


def plan(pieces: Sequence[Piece], runner: Runner, scale: Scale) -> str:
    """A table of what there is to run, by kind, with the expected cost of what is left.

    The speed is that of the finished pieces of the same kind; before there are any, what the scale expects.
    """
    rows = []
    for kind in dict.fromkeys(piece.kind for piece in in_order(pieces)):
        of_kind = [(piece, runner.done(piece)) for piece in in_order(pieces) if piece.kind == kind]
        left = [piece for piece, done in of_kind if done is None]
        measured = [(piece.work, done["seconds"]) for piece, done in of_kind if done and not done["resumed"]]
        work, seconds = map(sum, zip(*measured, strict=True)) if measured else (scale.speed[kind], 1)
        hours = sum(piece.work for piece in left) / work * seconds / 3600
        counts = {"runs": len(of_kind), "finished": len(of_kind) - len(left), "left": len(left)}
        counts["running"] = sum(runner.state(piece) == "running" for piece in left)
        counts["GB"] = sum(map(runner.bytes_left, left)) / 1e9
        devices = scale.devices if kind == "pretraining" else 1
        rows.append({"kind": kind, **counts, "hours": hours, "device hours": hours * devices})
    total = {key: sum(row[key] for row in rows) for key in rows[0] if key != "kind"}
    return reporting.table([*rows, {"kind": "all", **total}]) + f"\nA device is {scale.device}."


def listing(pieces: Sequence[Piece], runner: Runner) -> str:
    """Each piece with its state, its command and a place in the table that needs it, in the order in which they run."""
    lines = [(runner.state(piece), " ".join(runner.command(piece)), piece) for piece in in_order(pieces)]
    return "\n".join(f"{state:8}  python -m {command}  # {piece}" for state, command, piece in lines)


class Table:
    """The scores of a table.

    Args:
      experiment: the table.
      cells: those that are wanted.
      runner: knows which are finished.
    """

    def __init__(self, experiment: Experiment, cells: Sequence[Cell], runner: Runner) -> None:
        self._experiment = experiment
        self._columns = {cell.heading: cell.in_file for cell in cells}
        self._rows = list({cell.row.name: cell.row for cell in cells}.values())
        # Row and heading -> seed -> score.
        self._scores: dict[tuple[str, str], dict[int | None, float]] = {}
        self._missing: list[str] = []
        self._records: list[dict[str, Any]] = []  # the lines of the CSV file
        for cell in cells:
            done, column = runner.done(cell.piece), experiment.columns[cell.in_file]
            score = done and done["scores"].get(column.metric)
            if score is not None:
                score *= 100 if column.percent else 1
                self._scores.setdefault((cell.row.name, cell.heading), {})[cell.seed] = score
            else:
                has = done and f" ({cell.piece.name} has no {column.metric!r}; it has {', '.join(done['scores'])})"
                self._missing.append(cell.name + (has or ""))
            record = {"row": cell.row.name, "column": cell.heading, "seed": cell.seed, "score": score}
            record |= {"paper": cell.row.paper.get(cell.in_file), "seconds": done and done["seconds"]}
            self._records.append(record | {"run": cell.piece.name})

    def write(self, path: str, left_out: Sequence[str]) -> str:
        """Writes `path` + .md, .csv and .png, and returns the Markdown; `left_out` is what the scale doesn't have."""
        notes = {"Not at this scale": ", ".join(left_out), "Missing": "; ".join(self._missing)}
        text = self._markdown([f"{name}: {items}." for name, items in notes.items() if items])
        with files.replacing(f"{path}.md") as writer:
            writer.write(text)
        write_table(f"{path}.csv", self._records)
        with reporting.picture(f"{path}.png", 4.5 * len(self._columns), 4) as figure:
            self._draw(figure)
        return text

    def tested(self, claim: Claim) -> str:
        """A sentence with the mean difference, and the p-value of a one-sided paired t-test over the seeds."""
        heading = next((heading for heading, in_file in self._columns.items() if in_file == claim.column), "")
        better, worse = (self._scores.get((row, heading), {}) for row in (claim.better, claim.worse))
        seeds = better.keys() & worse.keys() - {None}
        sign = -1 if seeds and self._experiment.columns[claim.column].lower_is_better else 1
        differences = [(better[seed] - worse[seed]) * sign for seed in seeds]
        if len(set(differences)) < 2:
            needed = f"the column {claim.column}, two seeds of both rows, and differences that are not all equal"
            return f"{claim.text}: not tested, which takes {needed}."
        from scipy import stats  # takes seconds, and only a table needs it

        p = stats.ttest_1samp(differences, 0, alternative="greater").pvalue  # the paired test of two samples
        mean = statistics.fmean(differences)
        verdict, relation = "holds" if p < 0.05 else "is not shown", "better" if mean > 0 else "worse"
        found = f"In {heading}, {claim.better} is {abs(mean):.2f} {relation} than {claim.worse}"
        test = f"over {len(seeds)} seeds (p = {p:.3f}, one-sided paired t-test)"
        return f"{claim.text}: {verdict}. {found}, {test}."

    def _mean_and_spread(self, row: str, heading: str) -> tuple[float, float]:
        values = list(self._scores.get((row, heading), {}).values()) or [math.nan]
        return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else math.nan

    def _markdown(self, notes: Sequence[str]) -> str:
        lines = [["", *(part for heading in self._columns for part in (heading, "paper"))]]
        for row in self._rows:
            lines.append([row.name])
            for heading, in_file in self._columns.items():
                score = " ± ".join(f"{x:.1f}" for x in self._mean_and_spread(row.name, heading) if not math.isnan(x))
                lines[-1] += [score, str(row.paper.get(in_file, ""))]
        seeds = sorted({seed for scores in self._scores.values() for seed in scores if seed is not None})
        spread = f"Mean ± standard deviation over the seeds {', '.join(map(str, seeds))}." if seeds else ""
        under = "\n".join(filter(None, (spread, self._experiment.note)))
        items = "\n".join(f"* {item}" for item in (*map(self.tested, self._experiment.claims), *notes))
        parts = (f"**{self._experiment.title}**", reporting.markdown(lines), under, items)
        return "\n\n".join(filter(None, parts)) + "\n"

    def _draw(self, figure: Any) -> None:
        """A panel for each column: the rows side by side, or lines over the steps; the paper's scores are hollow."""
        panels = figure.subplots(1, len(self._columns), squeeze=False)[0]
        for panel, (heading, in_file) in zip(panels, self._columns.items(), strict=True):
            for line in dict.fromkeys(row.line for row in self._rows):
                rows = [row for row in self._rows if row.line == line]
                places = [100 * row.checkpoint if line else i for i, row in enumerate(rows)]
                y, spread = zip(*(self._mean_and_spread(row.name, heading) for row in rows), strict=True)
                panel.errorbar(places, y, spread, fmt="o-" if line else "o", capsize=3, label=line or "measured")
                if any(in_file in row.paper for row in rows):
                    paper = [row.paper.get(in_file, math.nan) for row in rows]
                    panel.plot(places, paper, "D", fillstyle="none", label=f"paper {line}".strip())
                if not line:
                    panel.set_xticks(places, [row.name for row in rows], rotation=30, ha="right")
            panel.set(title=heading, xlabel="% of the steps of pre-training" if line else "")
            panel.legend()
        figure.suptitle(self._experiment.title)
