"""Stands in the place of a program: writes scores that its settings determine, and notes that it was called.

If there is a file `slow` in the folder with all pieces, it first waits until this file is gone.
"""

import json
import pathlib
import sys
import time
import zlib


def main() -> None:
    """Writes what the harness reads of a program."""
    module, *arguments = sys.argv[1:]
    flags = dict(argument.removeprefix("--").partition("=")[::2] for argument in arguments)
    output = pathlib.Path(flags.get("output_dir") or flags["output_file"])
    pieces = output.parent if flags.get("output_dir") else output.parent.parent
    with open(pieces / "calls.txt", "a") as calls:
        calls.write(f"{module} {output}\n")
    while (pieces / "slow").exists():
        time.sleep(0.02)
    if (pieces / f"{module}.fails").exists():
        sys.exit("error: the loss is not finite")
    score = zlib.crc32(" ".join(sorted(arguments)).replace(str(pieces), "").encode()) % 1000 / 1000
    if module == "run_pretraining":
        (output / "metrics.jsonl").write_text(json.dumps({"kind": "eval", "step": 1, "perplexity": score}) + "\n")
    elif flags.get("output_dir"):
        (output / "eval_results.json").write_text(json.dumps({"exact": score, "f1": score}))
    else:
        output.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")


if __name__ == "__main__":
    main()
