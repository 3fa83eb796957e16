"""Progress bars, tables, pictures and results, as the programs print and write them."""

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING

from tqdm import tqdm

from bert_tf.runtime import files
from bert_tf.runtime.messages import say, shows_progress

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def progress_bar(total: int | None, description: str, initial: int = 0, unit: str = "step", shown: bool = True) -> tqdm:
    """Returns a progress bar on standard error that shows the count, the rate and the remaining time.

    The bar is updated twice per second on a terminal, and once per minute elsewhere, for example in a log file. If the
    unit is "B" (bytes), numbers are printed as kB, MB and so on.
    """
    interval = 0.5 if sys.stderr and sys.stderr.isatty() else 60.0
    return tqdm(
        total=total,
        initial=initial,
        desc=description,
        unit=unit,
        unit_scale=unit == "B",
        mininterval=interval,
        maxinterval=max(10.0, interval),
        dynamic_ncols=True,
        disable=not (shown and shows_progress() and sys.stderr),
        file=sys.stderr,
    )


def format_number(value: float | int | str) -> str:
    """Formats a float with four significant digits, and any other value with `str`."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """Formats rows as an aligned text table; the keys of the first row are the columns."""
    header = list(rows[0])
    cells = [header] + [[format_number(row.get(key, "")) for key in header] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(header))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """Formats lines of cells as a table in Markdown; the first line is the header."""
    rows = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def write_tsv(writer: IO[str], rows: Sequence[Mapping[str, object]]) -> None:
    """Writes rows with the same keys as TSV, which has no quoting. Tabs and line ends in cells become spaces.

    Args:
      writer: the file.
      rows: the rows, at least one. Values that are lists are joined by commas.
    """
    spaces = str.maketrans("\t\r\n", "   ")
    for cells in (rows[0], *(row.values() for row in rows)):
        texts = (", ".join(cell) if isinstance(cell, list) else str(cell) for cell in cells)
        writer.write("\t".join(text.translate(spaces) for text in texts) + "\n")


@contextlib.contextmanager
def picture(path: str, width: float, height: float) -> Iterator["Figure"]:
    """Yields an empty Matplotlib figure, and writes it as a PNG file when the `with` block ends without an error.

    Args:
      path: the file.
      width: the width of the figure in inches.
      height: the height of the figure in inches.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    yield figure
    with files.replacing(path, "wb") as writer:
        FigureCanvasAgg(figure).print_png(writer)


def report_results(results: Mapping[str, object], path: str, model: str = "") -> None:
    """Prints evaluation results, and writes them to a file in the format of the original `eval_results.txt`.

    Each line is "name = value"; the lines are sorted. As in the original, the results may contain a second mean of the
    losses, `loss`. If there is also an `eval_loss`, `loss` is written to the file, but not printed.

    Args:
      results: maps names to values.
      path: the file.
      model: a description of the model, printed above the results.
    """
    lines = [f"{name} = {results[name]}" for name in sorted(results)]
    with files.replacing(path) as writer:
        say(f"***** Eval results ({path}) *****" + (f"\n  of the model at {model}" if model else ""))
        for line in lines:
            if "eval_loss" not in results or not line.startswith("loss = "):
                say(f"  {line}")
        writer.writelines(f"{line}\n" for line in lines)
