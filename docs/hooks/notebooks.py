"""MkDocs hook: builds a page from each notebook, with its committed outputs and pictures.

In the repository, pages and notebooks link to files. On the site, the links lead to pages.
"""

import pathlib
import re
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NOTEBOOKS = "examples/notebooks"
PAGES = "tutorials"


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages and their pictures to the files of the site."""
    from mkdocs.structure.files import File
    from nbconvert import MarkdownExporter

    for path in sorted((ROOT / NOTEBOOKS).glob("*.ipynb")):
        names = {"unique_key": path.stem, "output_files_dir": f"{path.stem}_files"}
        page, resources = MarkdownExporter().from_filename(str(path), resources=names)
        page = page.replace("](../../docs/", "](../").replace(".ipynb)", ".md)")
        files.append(File.generated(config, f"{PAGES}/{path.stem}.md", content=page))
        for name, picture in resources["outputs"].items():
            files.append(File.generated(config, f"{PAGES}/{name}", content=picture))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replaces links to notebooks by links to their pages."""
    return re.sub(rf"\]\(\.\./((?:\.\./)*){NOTEBOOKS}/(\w+)\.ipynb\)", rf"](\1{PAGES}/\2.md)", markdown)
