"""Replaces a program: writes scores that its settings determine, and records the call.

Files in the directory of all runs change the behaviour: `kills` is the number of times to kill the harness, and
`MODULE.fails` makes a program fail.
"""

import json
import os
import pathlib
import signal
import sys
import zlib


def main() -> None:
    """Writes the files that the harness reads."""
    module, *arguments = sys.argv[1:]
    flags = dict(argument.removeprefix("--").partition("=")[::2] for argument in arguments)
    output = pathlib.Path(flags.get("output_dir") or flags["output_file"])
    runs = output.parent if flags.get("output_dir") else output.parent.parent
    with open(runs / "calls.txt", "a") as calls:
        calls.write(f"{module} {output}\n")
    kills = runs / "kills"
    if kills.exists() and (left := int(kills.read_text())):
        kills.write_text(str(left - 1))
        os.kill(os.getppid(), signal.SIGKILL)
    if (runs / f"{module}.fails").exists():
        sys.exit("error: the loss is not finite")
    score = zlib.crc32(" ".join(sorted(arguments)).replace(str(runs), "").encode()) % 1000 / 1000
    if module == "run_pretraining":
        (output / "metrics.jsonl").write_text(json.dumps({"kind": "eval", "step": 1, "perplexity": score}) + "\n")
    elif flags.get("output_dir"):
        (output / "eval_results.json").write_text(json.dumps({"best_exact": score, "best_f1": score}))
    else:
        output.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")


if __name__ == "__main__":
    main()
