#!/usr/bin/env python3
"""Sets TF_CONFIG from Slurm's environment variables, and runs a command.

    srun python deploy/slurm/with_tf_config.py python run_pretraining.py --distribution_strategy=multi_worker ...

Each node runs one task, which uses all GPUs that the job has on the node. Without a command, the script prints
TF_CONFIG. BERT_PORT is the port of all workers. By default it depends on the job's number, so that two jobs can share a
node. The script needs neither Python packages nor Slurm's commands, so it also works in containers.
"""

import json
import os
import re
import sys
from collections.abc import Mapping

# First port, and number of ports.
_PORTS = 20000, 10000


def expand(nodes: str) -> list[str]:
    """Returns the names in a list of nodes such as "gpu[01-03,7],login", in the order of the list.

    Raises:
      ValueError: if a bracket is missing or a range is not of numbers.
    """
    if not re.fullmatch(r"[^\[\],\s]*(\[[\d,-]+\][^\[\],\s]*)*(,[^\[\],\s]*(\[[\d,-]+\][^\[\],\s]*)*)*", nodes):
        raise ValueError(f"{nodes!r} is not a list of nodes")
    names = []
    for item in re.split(r",(?![^\[]*\])", nodes):
        found = [""]
        for text, ranges in re.findall(r"([^\[\]]+)|\[([^\]]*)\]", item):
            numbers = [number for part in ranges.split(",") for number in _range(part)] if ranges else [text]
            found = [name + number for name in found for number in numbers]
        names += found
    return names


def _range(text: str) -> list[str]:
    """Returns the numbers of a range such as "08-11", with its leading zeros."""
    first, _, last = text.partition("-")
    return [f"{number:0{len(first)}}" for number in range(int(first), int(last or first) + 1)]


def tf_config(environment: Mapping[str, str]) -> str:
    """Returns TF_CONFIG for this task.

    Raises:
      ValueError: if a variable is missing, or a node has several tasks.
    """

    def variable(*names: str) -> str:
        for name in names:
            if name in environment:
                return environment[name]
        raise ValueError(f"{names[0]} is not set. Start this script with srun")

    nodes = expand(variable("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"))
    tasks = int(variable("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"))
    if tasks != len(nodes):
        raise ValueError(f"{tasks} tasks on {len(nodes)} nodes. Use --ntasks-per-node=1")
    first, count = _PORTS
    port = environment.get("BERT_PORT") or str(first + int(variable("SLURM_JOB_ID")) % count)
    workers = [f"{node}:{port}" for node in nodes]
    task = {"type": "worker", "index": int(variable("SLURM_PROCID"))}
    return json.dumps({"cluster": {"worker": workers}, "task": task})


if __name__ == "__main__":
    try:
        os.environ["TF_CONFIG"] = tf_config(os.environ)
    except ValueError as error:
        sys.exit(f"with_tf_config.py: {error}.")
    if len(sys.argv) == 1:
        print(os.environ["TF_CONFIG"])
    else:
        os.execvp(sys.argv[1], sys.argv[1:])
