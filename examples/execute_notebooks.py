"""Executes the notebooks and stores their outputs in them; `make notebooks` runs this script.

    python -m examples.execute_notebooks [NAME ...]

Progress bars and messages, which go to standard error, are not stored.
"""

import os
import pathlib
import shutil
import sys
import time

DIRECTORY = pathlib.Path(__file__).resolve().parent / "notebooks"
# The first notebook makes the model that the second notebook serves.
NAMES = ("pretraining", "serving", "movie_reviews", "squad", "ner")


def execute(name: str) -> None:
    """Executes a notebook in place. If a cell fails, the notebook is unchanged."""
    import nbformat  # imported here because tests import this module without nbformat
    from nbclient import NotebookClient

    # Removed because a notebook that resumes an earlier run prints fewer outputs.
    shutil.rmtree(DIRECTORY.parent.parent / "build" / "notebooks" / name, ignore_errors=True)
    path = DIRECTORY / f"{name}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    context = {"metadata": {"path": str(DIRECTORY)}}
    start = time.monotonic()
    NotebookClient(notebook, timeout=None, record_timing=False, resources=context).execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    notebook.metadata["kernelspec"] = {"display_name": "Python 3", "language": "python", "name": "python3"}
    nbformat.write(notebook, path)
    print(f"{path.name}: {(time.monotonic() - start) / 60:.1f} minutes, {path.stat().st_size / 1e3:.0f} kB", flush=True)


if __name__ == "__main__":
    os.environ["PYTHONPATH"] = str(DIRECTORY.parent.parent)  # for the notebooks, which run in their own directory
    for name in sys.argv[1:] or NAMES:
        execute(name)
