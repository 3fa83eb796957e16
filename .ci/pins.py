"""Resolves the exact versions in requirements*.txt from the bounds in pyproject.toml, with uv.

    python .ci/pins.py           # keeps the versions; adds and removes packages as pyproject.toml requires
    python .ci/pins.py NAME ...  # also upgrades these packages
    python .ci/pins.py all       # upgrades all packages, except the packages of CUDA and the TPU

All packages are resolved together, so each package has the same version in all files. Comments, blank lines and
included files do not change. A file lists the packages that its requirements need, without the packages of included
files.
"""

import pathlib
import re
import subprocess
import sys
import tomllib

_PROJECT = tomllib.loads(pathlib.Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
# The oldest Python 3.11 for which all packages of the documentation have a version, and libtpu's glibc.
_UV = [
    *(sys.executable, "-m", "uv", "pip", "compile", "-", "--quiet", "--no-header", "--no-annotate"),
    *("--python-version=3.11.5", "--python-platform=x86_64-manylinux_2_31", "--constraints=build/constraints.txt"),
]
_BUILDS = ("tensorflow", "tensorflow-tpu")


def canonical(name: str) -> str:
    """Returns the name of a package in the spelling of the package index, without extras."""
    return re.sub(r"[-_.]+", "-", name.partition("[")[0]).lower()


def lines_of(*extras: str) -> list[str]:
    """Returns the requirements of extras, except references to other extras."""
    optional = _PROJECT["optional-dependencies"]
    return [line for extra in extras for line in optional[extra] if not line.startswith(_PROJECT["name"])]


def pins(text: str) -> dict[str, str]:
    """Returns a map from package names, as spelled in the file, to versions."""
    return dict(line.split("==") for line in text.splitlines() if "==" in line and not line.startswith("#"))


def resolve(requirements: list[str], constraints: dict[str, str]) -> dict[str, str]:
    """Returns a map from canonical names to versions, for the required packages and all their dependencies."""
    text = "".join(f"{canonical(name)}=={version}\n" for name, version in constraints.items())
    pathlib.Path("build").mkdir(exist_ok=True)
    pathlib.Path("build/constraints.txt").write_text(text, encoding="utf-8")
    resolved = subprocess.run(_UV, input="\n".join(requirements), stdout=subprocess.PIPE, text=True, check=False)
    if resolved.returncode:
        sys.exit("A pinned version does not fit pyproject.toml. Pass the names of the packages to upgrade.")
    return {canonical(name): version for name, version in pins(resolved.stdout).items()}


def replace_pins(text: str, blocks: list[dict[str, str]], spellings: dict[str, str]) -> str:
    """Returns the text with new pins. `blocks` has the versions for each block of lines between blank lines."""
    written = []
    for block, versions in zip(text.rstrip("\n").split("\n\n"), blocks, strict=True):
        comments = [line for line in block.splitlines() if "==" not in line or line.startswith("#")]
        new = [f"{spellings.get(name, name)}=={version}" for name, version in versions.items()]
        written.append("\n".join([*comments, *sorted(new, key=str.casefold)]) + "\n")
    return "\n".join(written)


def main(upgraded: list[str]) -> None:
    """Writes all requirements files."""
    files = {kind: pathlib.Path(f"requirements{kind}.txt") for kind in ("", "-common", "-dev", "-beam", "-docs")}
    files |= {kind: pathlib.Path(f"requirements{kind}.txt") for kind in ("-gpu", "-tpu")}
    texts = {kind: path.read_text(encoding="utf-8") for kind, path in files.items()}
    old = {name: version for text in texts.values() for name, version in pins(text).items()}
    devices = pins(texts["-gpu"]) | pins(texts["-tpu"])
    dropped = {canonical(name) for name in (old.keys() - devices.keys() if upgraded == ["all"] else upgraded)}
    constraints = {name: version for name, version in old.items() if canonical(name) not in dropped}

    users, squad = _PROJECT["dependencies"], lines_of("squad")
    more = {"-dev": lines_of("test", "dev"), "-beam": lines_of("beam"), "-docs": lines_of("docs", "notebooks")}
    versions = resolve([*users, *lines_of("squad", "corpus", "test", "dev", "beam", "docs", "notebooks")], constraints)
    constraints = devices | versions
    tensorflow = versions["tensorflow"]
    common, with_squad = resolve(users, constraints), resolve([*users, *squad], constraints)

    def without(versions: dict[str, str], *included: dict[str, str]) -> dict[str, str]:
        return {n: v for n, v in versions.items() if n not in _BUILDS and not any(n in others for others in included)}

    def named(requirements: list[str]) -> dict[str, str]:
        names = {canonical(re.match(r"[\w.-]+", line)[0]) for line in requirements}
        return {name: version for name, version in versions.items() if name in names}

    direct = named([*users, *squad])
    blocks = {
        "": [{"tensorflow": tensorflow}],
        "-common": [without(direct), without(common, direct), without(with_squad, direct, common)],
    }
    for kind, lines in more.items():
        added = without(resolve([*users, *squad, *lines], constraints), with_squad)
        tools = without(named(lines), with_squad) if kind == "-dev" else {}
        blocks[kind] = [tools, without(added, tools)] if tools else [added]
    for kind, build in (("-gpu", "tensorflow[and-cuda]"), ("-tpu", "tensorflow-tpu")):
        needed = resolve([f"{build}=={tensorflow}"], constraints)
        blocks[kind] = [{build: tensorflow} | without(needed, with_squad)]
    spellings = {canonical(name): name for name in old if "[" not in name}
    for kind, path in files.items():
        path.write_text(replace_pins(texts[kind], blocks[kind], spellings), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
