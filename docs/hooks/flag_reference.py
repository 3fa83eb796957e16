"""MkDocs hook: generates the page of all flags from the programs.

    python docs/hooks/flag_reference.py    # prints the flags as JSON

Programs define their flags at run time. Therefore the hook starts each program in a separate process, and stops it
before it parses the flags.
"""

import contextlib
import io
import json
import multiprocessing
import pathlib
import re
import runpy
import subprocess
import sys
import tomllib
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PAGE = "reference/flags.md"
_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Module of a program -> the command that `pip install` creates for it.
COMMANDS = {target.partition(":")[0]: name for name, target in _PROJECT["scripts"].items()}


class _FlagsAreDefined(Exception):
    """Raised in place of parsing the flags, to stop the program."""


def describe(program: str) -> dict[str, Any]:
    """Returns the documentation of a program, and the help and the section of each of its flags."""
    from absl import app, flags

    from bert_tf.runtime.program import flags_by_section, needs_of_flags

    by_section: dict[str, list[str]] = {}

    def stop(*_: object, **__: object) -> None:
        by_section.update(flags_by_section())
        raise _FlagsAreDefined

    app.run = stop
    sys.argv = [program]
    with contextlib.suppress(_FlagsAreDefined):
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    sections = {name: title for title, names in by_section.items() for name in names}
    # In absl, a program's own flags belong to its file, and shared flags to modules of the project.
    by_module = flags.FLAGS.flags_by_module_dict()
    modules = [name for name in by_module if name.startswith((str(ROOT), "bert_tf.", "data_prep."))]
    described_flags = []
    for flag in {flag.name: flag for module in modules for flag in by_module[module]}.values():
        values = getattr(flag.parser, "enum_values", None)
        kind = "enum" if values else flag.flag_type().removeprefix("multi ").split()[0]
        # absl adds the values in angle brackets at the start of the help. A browser would read them as a tag.
        text = flag.help.removeprefix(f"<{'|'.join(values)}>: ") if values else flag.help
        described = {"name": flag.name, "default": flag.default, "help": text, "values": values, "type": kind}
        needs = [list(condition) for condition in needs_of_flags.get(flag.name, [])]
        described_flags.append(described | {"section": sections.get(flag.name, ""), "needs": needs})
    titles = ["", *by_section]
    return {"program": program, "sections": titles, "flags": sorted(described_flags, key=lambda flag: flag["name"])}


def describe_all() -> list[dict[str, Any]]:
    """Returns the descriptions of all programs; see `describe`."""
    sys.path.insert(0, str(ROOT))
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        return pool.map(describe, sorted(COMMANDS, key=_position), chunksize=1)


def _position(program: str) -> tuple[bool, bool, str]:
    """Sorts the main programs before the other programs, and data preparation after them."""
    return program.startswith("data_prep."), "." in program, program


def page(programs: list[dict[str, Any]]) -> str:
    """Returns the page in Markdown."""
    text = io.StringIO()
    text.write("# Flags\n\nThe `--help` texts of all programs, generated when this page was built.\n")
    for description in programs:
        module = description["program"]
        name = module.rpartition(".")[2]
        command = f"python -m {module}" if "." in module else f"python {module}.py"
        text.write(f"\n## {name}\n\n`{command}`, or `{COMMANDS[module]}` after `pip install`.\n")
        for section in description["sections"]:
            rows = [_row(name, flag) for flag in description["flags"] if flag["section"] == section]
            anchor = re.sub(r"\W+", "-", f"{name} {section}".lower())
            if rows and section:
                text.write(f"\n### {name}: {section} {{ #{anchor} }}\n")
            if rows:
                text.write("\n| Flag | Default | Meaning |\n|---|---|---|\n" + "".join(rows))
    return text.getvalue()


def _row(program: str, flag: dict[str, Any]) -> str:
    meaning = " ".join(flag["help"].split()).replace("|", "\\|")
    meaning = re.sub(r"--\w+(=\w+)?", r"`\g<0>`{ .flag }", meaning)
    if flag["values"]:
        meaning += " One of " + ", ".join(f"`{value}`" for value in flag["values"]) + "."
    anchor = f"{program}-{flag['name']}"
    link = f"[`--{flag['name']}`](#{anchor}){{ .flag #{anchor} }}"
    return f"| {link} | {_shown(flag['default'])} | {meaning} |\n"


def _shown(default: object) -> str:
    if default is None or default in ("", []):
        return ""
    shown = ",".join(map(str, default)) if isinstance(default, list) else str(default)
    return "`" + shown.lower() + "`" if isinstance(default, bool) else f"`{shown}`"


def on_files(files: Any, config: Any) -> Any:
    """Adds the page to the site."""
    from mkdocs.structure.files import File

    listed = subprocess.run([sys.executable, __file__], cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True).stdout
    files.append(File.generated(config, PAGE, content=page(json.loads(listed))))
    return files


if __name__ == "__main__":
    json.dump(describe_all(), sys.stdout)
