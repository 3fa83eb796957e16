"""Writes a table with the paper's scores as Markdown, CSV and a figure, and tests the claims of the table."""

from collections.abc import Sequence
from typing import Any

import pandas
from scipy import stats

from bert_tf.runtime import files, reporting
from experiments.assembly import Cell
from experiments.runner import Runner
from experiments.schema import Claim, Experiment


class Table:
    """The scores of a table.

    Args:
      experiment: The table.
      cells: The cells to show.
      runner: Provides the records of finished runs.
    """

    def __init__(self, experiment: Experiment, cells: Sequence[Cell], runner: Runner) -> None:
        self._experiment = experiment
        self._columns = {cell.heading: cell.in_file for cell in cells}
        self._rows = {cell.row.name: cell.row for cell in cells}
        records = []
        for cell in cells:
            done, column = runner.done(cell.run), experiment.columns[cell.in_file]
            score = done["scores"].get(column.metric) if done else None
            record = {"row": cell.row.name, "column": cell.heading, "seed": cell.seed}
            record["score"] = score * 100 if score is not None and column.percent else score
            record |= {"paper": cell.row.paper.get(cell.in_file), "seconds": done and done["seconds"]}
            records.append(record | {"run": cell.run.name})
        types = {"seed": "Int64", "score": float, "paper": float, "seconds": float}
        self._frame = pandas.DataFrame(records).astype(types)
        self._means = self._frame.groupby(["row", "column"], sort=False)[["score", "paper"]].mean()
        self._means["spread"] = self._frame.groupby(["row", "column"], sort=False).score.std()

    def write(self, path: str, left_out: Sequence[str]) -> str:
        """Writes `path` + .md, .csv and .png, and returns the Markdown text. For `left_out` see `Assembly`."""
        text = self._markdown(left_out)
        with files.replacing(f"{path}.md") as writer:
            writer.write(text)
        with files.replacing(f"{path}.csv") as writer:
            self._frame.to_csv(writer, index=False)
        with reporting.picture(f"{path}.png", 4.5 * len(self._columns), 4) as figure:
            self._draw(figure)
        return text

    def tested(self, claim: Claim) -> str:
        """Returns a sentence with the mean difference and the p-value of a one-sided paired t-test over the seeds."""
        scores = self._frame[self._frame.column.map(self._columns) == claim.column].dropna(subset=["seed", "score"])
        both = scores.pivot(index="seed", columns="row", values="score").reindex(columns=[claim.better, claim.worse])
        differences = (both[claim.better] - both[claim.worse]).dropna()
        if len(scores) and self._experiment.columns[claim.column].lower_is_better:
            differences = -differences
        if differences.nunique() < 2:
            return f"{claim.text}: not tested. The test needs two seeds with unequal differences between the rows."
        p, mean = stats.ttest_1samp(differences, 0, alternative="greater").pvalue, differences.mean()
        difference = f"{claim.better} is {abs(mean):.2f} {'better' if mean > 0 else 'worse'} than {claim.worse}"
        test = f"over {len(differences)} seeds (p = {p:.3f}, one-sided paired t-test)"
        verdict = "holds" if p < 0.05 else "is not shown"
        return f"{claim.text}: {verdict}. In {scores.column.iloc[0]}, {difference}, {test}."

    def _markdown(self, left_out: Sequence[str]) -> str:
        lines = [["", *(cell for heading in self._columns for cell in (heading, "paper"))]]
        for name, row in self._rows.items():
            lines.append([name])
            for heading, in_file in self._columns.items():
                score = self._means.reindex([(name, heading)])[["score", "spread"]].iloc[0].dropna()
                lines[-1] += [" ± ".join(f"{x:.1f}" for x in score), str(row.paper.get(in_file, ""))]
        is_missing = self._frame.score.isna()
        missing = [f"{x.row}, {x.column}, seed {x.seed}" for x in self._frame[is_missing].itertuples()]
        seeds = ", ".join(map(str, sorted(self._frame[~is_missing].seed.dropna().unique())))
        spread = f"Mean ± standard deviation over the seeds {seeds}." if seeds else ""
        notes = {"Not at this scale": ", ".join(left_out), "Missing": "; ".join(missing)}
        items = [*map(self.tested, self._experiment.claims), *(f"{x}: {text}." for x, text in notes.items() if text)]
        title, note = f"**{self._experiment.title}**", "\n".join(filter(None, (spread, self._experiment.note)))
        sections = title, reporting.markdown(lines), note, "\n".join(f"* {item}" for item in items)
        return "\n\n".join(filter(None, sections)) + "\n"

    def _draw(self, figure: Any) -> None:
        """Draws a panel for each column: a mark per row, or lines over steps. Hollow marks are the paper's scores."""
        panels = figure.subplots(1, len(self._columns), squeeze=False)[0]
        for panel, heading in zip(panels, self._columns, strict=True):
            means = self._means.xs(heading, level="column").reindex(list(self._rows))
            lines = [row.line for row in self._rows.values()]
            for line, shown in means.groupby(lines, sort=False):
                positions = [100 * self._rows[name].checkpoint if line else name for name in shown.index]
                style = "o-" if line else "o"
                panel.errorbar(positions, shown.score, shown.spread, fmt=style, capsize=3, label=line or "measured")
                panel.plot(positions, shown.paper, "D", fillstyle="none", label=f"paper {line}".strip())
            panel.tick_params("x", rotation=30)
            panel.set(title=heading, xlabel="% of the steps of pre-training" if any(lines) else "")
            panel.legend()
        figure.suptitle(self._experiment.title)
