"""Stands in the place of a program: writes scores that its settings determine, and notes that it was called.

If there is a file `slow` in the folder with all pieces, it first waits until this file is gone; if there is one named
`kills`, two of three calls kill the harness, ten times in all.
"""

import json
import os
import pathlib
import signal
import sys
import time
import zlib


def main() -> None:
    """Writes what the harness reads of a program."""
    module, *arguments = sys.argv[1:]
    flags = dict(argument.removeprefix("--").partition("=")[::2] for argument in arguments)
    output = pathlib.Path(flags.get("output_dir") or flags["output_file"])
    pieces = output.parent if flags.get("output_dir") else output.parent.parent
    if "--only_check_args" in arguments:
        sys.exit("Unknown command line flag 'lerning_rate'" if "lerning_rate" in flags else 0)
    with open(pieces / "calls.txt", "a") as calls:
        calls.write(f"{module} {output}\n")
    number = len((pieces / "calls.txt").read_text().splitlines())
    if (pieces / "kills").exists() and number <= 15 and number % 3 != 1:
        os.kill(os.getppid(), signal.SIGKILL)
    while (pieces / "slow").exists():
        time.sleep(0.02)
    if (pieces / f"{module}.fails").exists():
        sys.exit("error: the loss is not finite")
    score = zlib.crc32(" ".join(sorted(arguments)).replace(str(pieces), "").encode()) % 1000 / 1000
    if module == "run_pretraining":
        (output / "metrics.jsonl").write_text(json.dumps({"kind": "eval", "step": 1, "perplexity": score}) + "\n")
    elif flags.get("output_dir"):
        (output / "eval_results.json").write_text(json.dumps({"best_exact": score, "best_f1": score}))
    else:
        output.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")


if __name__ == "__main__":
    main()
