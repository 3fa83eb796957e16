"""Makes a page of each notebook, with its output and pictures as they were committed (a hook of MkDocs).

Pages and notebooks link to each other as they lie in the repository; on the site, to the pages.
"""

import pathlib
import re
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FOLDER = "notebooks"


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages and their pictures to what MkDocs builds."""
    from mkdocs.structure.files import File
    from nbconvert import MarkdownExporter

    for path in sorted((ROOT / "examples" / FOLDER).glob("*.ipynb")):
        names = {"unique_key": path.stem, "output_files_dir": f"{path.stem}_files"}
        page, resources = MarkdownExporter().from_filename(str(path), resources=names)
        page = page.replace("](../../docs/", "](../").replace(".ipynb)", ".md)")
        files.append(File.generated(config, f"{FOLDER}/{path.stem}.md", content=page))
        for name, picture in resources["outputs"].items():
            files.append(File.generated(config, f"{FOLDER}/{name}", content=picture))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links to the pages of notebooks instead of the notebooks."""
    return re.sub(rf"\]\(\.\./examples/{FOLDER}/(\w+)\.ipynb\)", rf"]({FOLDER}/\1.md)", markdown)
