"""Writes the address of the repository into README.md and pyproject.toml before a release is built.

    python .ci/insert_repository_url.py https://HOST/OWNER/NAME TAG

A package index shows README.md without the other files of the repository. Therefore relative links and pictures become
URLs at the tag. Only the release workflow has the address, because the repository may be hosted anywhere.
"""

import pathlib
import re
import sys

_RELATIVE = re.compile(r"(!?)\[([^\]\n]*)\]\((?!\w+:|#)([^)\s]+)\)")
_PROJECT_TABLE = "[project.scripts]\n"


def with_urls(markdown: str, repository: str, tag: str) -> str:
    """Returns the page with URLs in place of relative links and pictures."""
    return _RELATIVE.sub(
        lambda found: f"{found[1]}[{found[2]}]({repository}/{'raw' if found[1] else 'blob'}/{tag}/{found[3]})", markdown
    )


def with_project_urls(pyproject: str, repository: str, tag: str) -> str:
    """Returns the text of pyproject.toml with the table `project.urls` added."""
    urls = {
        "Repository": repository,
        "Documentation": f"{repository}/blob/{tag}/docs/index.md",
        "Changelog": f"{repository}/blob/{tag}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }
    table = "".join(f'{name} = "{url}"\n' for name, url in urls.items())
    assert pyproject.count(_PROJECT_TABLE) == 1
    return pyproject.replace(_PROJECT_TABLE, f"[project.urls]\n{table}\n{_PROJECT_TABLE}")


if __name__ == "__main__":
    for name, change in {"README.md": with_urls, "pyproject.toml": with_project_urls}.items():
        file = pathlib.Path(name)
        file.write_text(change(file.read_text(encoding="utf-8"), *sys.argv[1:]), encoding="utf-8")
