"""Runs the trials; see the docstring of the package."""

import argparse
import collections
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from tests.torture import damage, kills, properties

PARTS = {"kills": kills.trial, "damage": damage.trial, "properties": properties.trial}
# Time-out of a trial. On a busy machine, the longest trial takes minutes.
_SECONDS = 900


def run(part: str, seed: int, number: int) -> tuple[dict[str, int], str]:
    """Runs a trial in a child process with its own directory. Returns the counts, and the problem or ""."""

    def work() -> str:
        signal.alarm(_SECONDS)
        counts, problem = collections.Counter(), ""
        try:
            PARTS[part](directory, random.Random(f"{part} {seed} {number}"), number, counts)
        except BaseException:
            problem = traceback.format_exc()[-5000:]
        return json.dumps([counts, problem])

    with tempfile.TemporaryDirectory(prefix="torture-", ignore_cleanup_errors=True) as directory:
        _, text = kills.in_child(work)
    return json.loads(text or f'[{{}}, "the trial crashed, or took {_SECONDS} seconds"]')


def main() -> int:
    """Returns the exit status: 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description="Causes faults, and counts them.")
    parser.add_argument("--minutes", type=float, default=10.0, help="no trial begins later")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between them")
    parser.add_argument("--trial", type=int, help="run only the trial with this number, of each part")
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    tried, trials, broken = collections.Counter(), 0, 0
    number = options.trial or 0
    while not trials or (options.trial is None and time.monotonic() < end):
        for part in options.only.split(","):
            counts, problem = run(part, options.seed, number)
            tried.update(counts)
            trials, broken = trials + 1, broken + bool(problem)
            if problem:
                again = f"--only={part} --seed={options.seed} --trial={number}"
                print(f"{problem}\nAgain: python -m tests.torture {again}\n")
        number += 1
    for what, count in sorted(tried.items()):
        print(f"{count:>9,} {what}")
    print(f"{trials:>9,} trials of {options.only}: {broken} not held.")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
