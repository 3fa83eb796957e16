"""The plan of a table, and the table itself beside the paper's: Markdown, CSV, a figure, and a test of its claims."""

import csv
import io
import math
import statistics
from collections.abc import Sequence

from bert_tf.runtime import files, reporting
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
        counts |= {"running": sum(map(runner.is_running, left)), "GB": sum(piece.disk for piece in left) / 1e9}
        devices = scale.devices if kind == "pretraining" else 1
        rows.append({"kind": kind, **counts, "hours": hours, "device hours": hours * devices})
    total = {key: sum(row[key] for row in rows) for key in rows[0] if key != "kind"}
    return reporting.table([*rows, {"kind": "all", **total}]) + f"\nA device is {scale.device}."


def listing(pieces: Sequence[Piece], runner: Runner) -> str:
    """Each piece with its state and its command, in the order in which they run."""

    def state(piece: Piece) -> str:
        return "finished" if runner.done(piece) else "running" if runner.is_running(piece) else "left"

    return "\n".join(f"{state(piece):8}  python -m {' '.join(runner.command(piece))}" for piece in in_order(pieces))


class Table:
    """The scores of a table.

    Args:
      experiment: the table.
      cells: those that are wanted.
      runner: knows which are finished.
    """

    def __init__(self, experiment: Experiment, cells: Sequence[Cell], runner: Runner) -> None:
        self._experiment, self._cells, self._runner = experiment, cells, runner
        self._columns = {cell.heading: cell.in_file for cell in cells}
        self._rows = list({cell.row.name: cell.row for cell in cells}.values())
        self._scores: dict[tuple[str, str], dict[int | None, float]] = {}
        self._missing = []
        for cell in cells:
            done, metric = runner.done(cell.piece), cell.column.metric
            of_cell = self._scores.setdefault((cell.row.name, cell.heading), {})
            scores = done["scores"] if done else {}
            if metric in scores:
                of_cell[cell.seed] = scores[metric] * (100 if cell.column.percent else 1)
            else:
                has = f" ({cell.piece.name} has no score {metric!r}; it has {', '.join(scores)})" if done else ""
                self._missing.append(cell.name + has)

    def write(self, path: str, left_out: Sequence[str]) -> str:
        """Writes `path` + .md, .csv and .png, and returns the Markdown; `left_out` is what the scale doesn't have."""
        notes = {"Not at this scale": ", ".join(left_out), "Missing": "; ".join(self._missing)}
        text = self._markdown([f"{name}: {items}." for name, items in notes.items() if items])
        for ending, content in (("md", text.encode()), ("csv", self._csv().encode()), ("png", self._picture())):
            with files.replacing(f"{path}.{ending}", "wb") as writer:
                writer.write(content)
        return text

    def tested(self, claim: Claim) -> str:
        """A sentence with the mean difference, and the p-value of a one-sided paired t-test over the seeds."""
        found = next((cell for cell in self._cells if cell.in_file == claim.column), None)
        if found is None:
            return f"{claim.text}: not tested, because the column {claim.column} is not here."
        better, worse = (self._scores.get((row, found.heading), {}) for row in (claim.better, claim.worse))
        seeds, sign = better.keys() & worse.keys() - {None}, -1 if found.column.lower_is_better else 1
        differences = [(better[seed] - worse[seed]) * sign for seed in seeds]
        if len(set(differences)) < 2:
            needed = "two seeds of both rows, and differences that are not all equal"
            return f"{claim.text}: not tested, which takes {needed}."
        from scipy import stats  # takes seconds, and only a table needs it

        p = stats.ttest_1samp(differences, 0, alternative="greater").pvalue  # the paired test of two samples
        mean = statistics.fmean(differences)
        verdict, relation = "holds" if p < 0.05 else "is not shown", "better" if mean > 0 else "worse"
        return (
            f"{claim.text}: {verdict}. In {found.heading}, {claim.better} is {abs(mean):.2f} {relation} than "
            f"{claim.worse}, over {len(seeds)} seeds (p = {p:.3f}, one-sided paired t-test)."
        )

    def _mean_and_spread(self, row: str, heading: str) -> tuple[float, float]:
        values = list(self._scores.get((row, heading), {}).values()) or [math.nan]
        return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else math.nan

    def _markdown(self, notes: Sequence[str]) -> str:
        header = ["", *(part for heading in self._columns for part in (heading, "paper"))]
        lines = [f"**{self._experiment.title}**", "", f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
        for row in self._rows:
            shown = [row.name]
            for heading, in_file in self._columns.items():
                score = " ± ".join(f"{x:.1f}" for x in self._mean_and_spread(row.name, heading) if not math.isnan(x))
                shown += [score, str(row.paper.get(in_file, ""))]
            lines.append(f"| {' | '.join(shown)} |")
        seeds = sorted({seed for scores in self._scores.values() for seed in scores if seed is not None})
        spread = [f"Mean ± standard deviation over the seeds {', '.join(map(str, seeds))}."] if seeds else []
        claims = [f"* {self.tested(claim)}" for claim in self._experiment.claims]
        under = [*spread, self._experiment.note, "", *claims, *(f"* {note}" for note in notes)]
        return "\n".join([*lines, "", *under]).replace("\n\n\n", "\n\n").rstrip() + "\n"

    def _csv(self) -> str:
        text = io.StringIO()
        rows: list[tuple] = [("row", "column", "seed", "score", "paper", "seconds", "run")]
        for cell in self._cells:
            score = self._scores[cell.row.name, cell.heading].get(cell.seed)
            seconds = (self._runner.done(cell.piece) or {}).get("seconds")
            paper = cell.row.paper.get(cell.in_file)
            rows.append((cell.row.name, cell.heading, cell.seed, score, paper, seconds, cell.piece.name))
        csv.writer(text, lineterminator="\n").writerows(rows)
        return text.getvalue()

    def _picture(self) -> bytes:
        """A panel for each column: the rows side by side, or lines over the steps; the paper's scores are hollow."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(4.5 * len(self._columns), 4), layout="constrained")
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
        picture = io.BytesIO()
        FigureCanvasAgg(figure).print_png(picture)
        return picture.getvalue()
