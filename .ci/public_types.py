"""Checks that type checkers can find the types of all public names.

    python .ci/public_types.py

Public names are the names in `bert_tf` and `bert_tf.api`, and the names in the modules, classes and functions in
docs/reference/python. pyright counts types of other packages as known if the packages have types or stubs. Keras has no
types, and the types of TensorFlow are incomplete, so tests/typing contains stubs.
"""

import json
import os
import pathlib
import re
import subprocess
import sys

_PACKAGES = ("bert_tf", "data_prep")
_ROOT = pathlib.Path(__file__).resolve().parent.parent
_PAGES = _ROOT / "docs" / "reference" / "python"


def public_names() -> set[str]:
    """Returns the names of the public modules, classes and functions."""
    pages = [path.read_text(encoding="utf-8") for path in _PAGES.glob("*.md")]
    return {"bert_tf", "bert_tf.api", *(name for page in pages for name in re.findall(r"^::: (\S+)", page, re.M))}


def report_of(package: str) -> dict:
    """Returns pyright's report on the names of a package."""
    paths = os.pathsep.join(map(str, (_ROOT, _ROOT / "tests" / "typing" / "stubs")))
    # pyright uses the packages of the first Python in PATH.
    first = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
    command = ["pyright", "--verifytypes", package, "--ignoreexternal", "--outputjson"]
    environment = os.environ | {"PATH": first, "PYTHONPATH": paths}
    done = subprocess.run(command, cwd=_ROOT, env=environment, stdout=subprocess.PIPE, check=False)
    return json.loads(done.stdout)["typeCompleteness"]


def main() -> None:
    """Prints the names without types, and exits with status 1 if there are any."""
    public, total, unknown = public_names(), 0, 0
    for package in _PACKAGES:
        report = report_of(package)
        modules = sorted((module["name"] for module in report["modules"]), key=len, reverse=True)
        for symbol in filter(lambda symbol: symbol["isExported"], report["symbols"]):
            name = symbol["name"]
            home = next(module for module in modules if f"{name}.".startswith(f"{module}."))
            top = ".".join(name.split(".")[: home.count(".") + 2])  # the class or function of the module
            if not {home, top} & public:
                continue
            total += 1
            if symbol["isTypeKnown"] and not symbol["isTypeAmbiguous"]:
                continue
            unknown += 1
            messages = (line for found in symbol["diagnostics"] for line in found["message"].splitlines())
            print(f"{name}: {'; '.join(messages)}")
    print(f"The types of {total - unknown} of {total} public names are known.")
    sys.exit(bool(unknown))


if __name__ == "__main__":
    main()
