"""Runs the trials; see the package's docstring."""

import argparse
import collections
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from tests.torture import serve, trials

# A trial that takes longer hangs; on a busy machine, the longest take minutes.
_SECONDS = 900


def run(part: str, seed: int, number: int) -> tuple[collections.Counter, str]:
    """Runs a trial in a child process, in a folder of its own; returns what was tried, and the problem or ""."""
    folder = tempfile.mkdtemp(prefix="torture-")
    result = f"{folder}.json"
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 1)
            os.dup2(nothing.fileno(), 2)
        signal.alarm(_SECONDS)
        counts, problem = collections.Counter(), ""
        try:
            trials.PARTS[part](folder, random.Random(f"{part} {seed} {number}"), number, counts)
        except BaseException:
            problem = traceback.format_exc()
        with open(result, "w") as writer:
            json.dump([counts, problem], writer)
        os._exit(0)
    os.waitpid(child, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what a trial that was not held has left
    told = ""
    with contextlib.suppress(FileNotFoundError), open(result) as reader:
        told = reader.read()
        os.remove(result)
    shutil.rmtree(folder, ignore_errors=True)
    if not told:
        return collections.Counter(), f"the trial hung for {_SECONDS} seconds, or crashed"
    counts, problem = json.loads(told)
    return collections.Counter(counts), problem


def main() -> int:
    """Returns the exit status: 1 if something was not held."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description="Causes faults, and counts them.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(trials.PARTS), help="parts, with commas between them")
    parser.add_argument("--trial", type=int, help="run only the trial with this number, of one part")
    parser.add_argument("--trials", type=int, default=sys.maxsize, help="at most so many of each part")
    options = parser.parse_args()
    parts = options.only.split(",")
    end = time.monotonic() + 60 * options.minutes
    tried, count, failed = collections.Counter(), 0, 0
    number = options.trial or 0
    last = number if options.trial is not None else options.trials - 1
    while number <= last and (number == (options.trial or 0) or time.monotonic() < end):
        for part in parts:
            counts, problem = run(part, options.seed, number)
            tried += counts
            count += 1
            if problem:
                failed += 1
                print(
                    f"{problem}\nAgain: python -m tests.torture --only={part} --seed={options.seed} --trial={number}\n"
                )
        number += 1
    shutil.rmtree(serve.model_folder(os.getpid()), ignore_errors=True)
    for what, number in sorted(tried.items()):
        print(f"{number:>9,} {what}")
    print(f"{count:>9,} trials of {options.only}: {failed} not held.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
