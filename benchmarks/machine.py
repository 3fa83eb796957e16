"""Describes the machine and the library versions that a measurement used."""

import os
import platform
import re

import tensorflow as tf

import bert_tf
from benchmarks.common import answer
from bert_tf.checkpoints.run_record import git_commit

# Instruction sets that determine the speed of matrix multiplications, with their names in Linux.
_INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
_PEERS = ("torch", "transformers", "sentence-transformers")
_FIND_PEERS = f"""
import importlib.metadata, json, torch
versions = {{each.name: each.version for each in importlib.metadata.distributions() if each.name in {_PEERS}}}
versions["GPU"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
print(json.dumps(versions))
"""


def peer_versions(python: str) -> dict[str, str]:
    """Returns the versions of PyTorch and other libraries in an environment. The key "GPU" has the name of the GPU."""
    return answer([python, "-c", _FIND_PEERS])


def describe(peers: dict[str, str]) -> str:
    """Returns one line: processor, cores that this process may use, instruction sets, memory, GPUs and versions."""
    with open("/proc/cpuinfo", encoding="utf-8") as reader:
        processor = reader.read()
    model = re.search(r"model name\s*: (.*)", processor)
    details = map(tf.config.experimental.get_device_details, tf.config.list_physical_devices("GPU"))
    gpus = " and ".join(each.get("device_name", "GPU") for each in details) or "no GPU"
    parts = [
        model[1] if model else platform.machine(),
        f"{len(os.sched_getaffinity(0))} cores",
        *(name for name in _INSTRUCTIONS if name in processor.split()),
        f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        f"bert_tf {bert_tf.__version__} {git_commit()}".strip(),
        f"tensorflow {tf.__version__} ({gpus})",
        f"torch {peers['torch']} ({peers['GPU']})",
        *(f"{name} {peers[name]}" for name in _PEERS[1:] if name in peers),
    ]
    return ", ".join(parts)
