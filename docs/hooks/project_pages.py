"""MkDocs hook: adds files of the repository, such as the changelog and the licence, as pages.

In the repository, pages link to the files. On the site, the links lead to the pages.
"""

import pathlib
import re
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# File -> page of the site.
PAGES = {
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CITATION.cff": "project/citation.md",
    "LICENSE": "project/licence.md",
    "SECURITY.md": "project/security.md",
    "deploy/README.md": "project/deploy.md",
}
_TO_FILE = re.compile(rf"\]\(\.\./((?:\.\./)*)({'|'.join(map(re.escape, PAGES))})(?=[#)])")
# A code block, or a flag that has no attributes yet and is not longer than a line on a phone.
_BLOCK_OR_FLAG = re.compile(r"^ *```.*?^ *```|(`--[^`\s]{,30}`)(?![{\]])", re.MULTILINE | re.DOTALL)


def _read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _page(name: str) -> str:
    if name == "LICENSE":
        return f"# Licence\n\n```text\n{_read(name)}```\n\n## Notice\n\n```text\n{_read('NOTICE')}```\n"
    if name == "CITATION.cff":
        return f"# Citation\n\nCite the paper on BERT and this project:\n\n```yaml\n{_read(name)}```\n"
    text = re.sub(r"\]\((\.\./)?docs/", "](../", _read(name))
    for file, page in PAGES.items():
        text = re.sub(rf"\]\((\.\./)?{re.escape(file)}", f"](../{page}", text)
    return text


def on_config(config: Any) -> Any:
    """Shows the version at the bottom of each page."""
    version = re.search(r'__version__ = "(.*)"', _read("bert_tf/runtime/__init__.py"))[1]
    config.copyright = f"bert-tf {version}, Apache License 2.0"
    return config


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages to the site."""
    from mkdocs.structure.files import File

    for name, page in PAGES.items():
        files.append(File.generated(config, page, content=_page(name)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replaces links to the files by links to their pages, and marks flags outside code blocks for the stylesheet."""
    markdown = _TO_FILE.sub(lambda found: f"]({found[1]}{PAGES[found[2]]}", markdown)
    return _BLOCK_OR_FLAG.sub(lambda found: found[0] + ("{ .flag }" if found[1] else ""), markdown)
