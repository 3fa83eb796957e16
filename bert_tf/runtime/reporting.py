"""What programs show: progress bars, tables, results."""

import sys
from collections.abc import Mapping, Sequence

from tqdm import tqdm

from bert_tf.runtime import files
from bert_tf.runtime.program import say


def progress_bar(total: int | None, description: str, initial: int = 0, unit: str = "step", shown: bool = True) -> tqdm:
    """A bar with counts, rate and ETA on standard error; quiet where nobody watches a terminal but every minute.

    Bytes (unit "B") are shown as kB, MB...
    """
    interval = 0.5 if sys.stderr.isatty() else 60.0
    return tqdm(
        total=total,
        initial=initial,
        desc=description,
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


def report_results(results: Mapping[str, object], path: str) -> None:
    """Prints an evaluation's results, and writes them as the release's `eval_results.txt`: "name = value", sorted."""
    say(f"***** Eval results ({path}) *****")
    lines = [f"{name} = {results[name]}" for name in sorted(results)]
    for line in lines:
        say(f"  {line}")
    with files.replacing(path) as writer:
        writer.writelines(f"{line}\n" for line in lines)
