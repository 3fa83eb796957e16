"""Checks that all workers have the same state, settings, data and code before they train.

Otherwise the workers would sum gradients of different models, and the result could not be reproduced.
"""

import functools
import glob
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_tf.distribution import strategies, workers
from bert_tf.distribution.workers import WorkersError
from bert_tf.runtime import __version__, differences

_STEP = "step"


def require(strategy: tf.distribute.Strategy, values: Callable[[], Mapping[str, Any]]) -> None:
    """Checks that all workers have the same values and the same code. All workers must call this function.

    The workers exchange texts of any length, independent of the model, so the check also works if everything differs.

    Args:
      strategy: the strategy; with only one worker, nothing is done.
      values: returns the values by name; they must be JSON-serialisable.

    Raises:
      WorkersError: on all workers, if they differ; the message names the differences, with the value of each worker.
    """
    if not strategies.is_multi_worker(strategy):
        return
    mine = json.dumps({**values(), "code": _code(), "devices": strategies.devices(strategy)})
    # Compare hashes first, because the fingerprints of thousands of files are long.
    if len(set(workers.gather(strategy, hashlib.sha256(mine.encode()).hexdigest()).values())) == 1:
        return
    texts = workers.gather(strategy, mine)
    different_values = differences.between(*map(json.loads, texts.values()))
    described = [f"{name} is {_by_worker(list(texts), values)}" for name, values in different_values]
    advice = "Give all workers the same flags, files and code, and start them again."
    if _STEP in dict(different_values):
        advice = "--output_dir must be a directory that all workers share. " + advice
    raise WorkersError(f"the workers do not agree:\n  {differences.listed(described)}\n{advice}")


def _by_worker(names: list[str], values: tuple) -> str:
    by_value: dict[str, list[str]] = {}
    for name, value in zip(names, values, strict=True):
        by_value.setdefault(json.dumps(value), []).append(name)
    return "; ".join(f"{value} on {', '.join(names)}" for value, names in by_value.items())


def state(step: int, variables: Mapping[str, tf.Variable]) -> dict[str, Any]:
    """Returns the values to compare after variables were restored. It reads about 1 GB of variables per second.

    Args:
      step: the global step.
      variables: all restored variables, by name.
    """
    digest = hashlib.sha256()
    for name in sorted(variables):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(variables[name].numpy()).view(np.uint8).data)
    return {_STEP: step, "checksum of all variables": digest.hexdigest()[:16]}


@functools.cache
def _code() -> dict[str, str]:
    """Returns library versions and a hash of the sources, because local edits do not change the version number."""
    digest = hashlib.sha256()
    directory = os.path.dirname(os.path.dirname(__file__))
    for path in sorted(glob.glob("**/*.py", root_dir=directory, recursive=True)):
        digest.update(path.encode())
        with open(os.path.join(directory, path), "rb") as reader:
            digest.update(reader.read())
    versions = {"tensorflow": tf.__version__, "keras": keras.__version__}
    return {"bert-tf": f"{__version__} (sources {digest.hexdigest()[:12]})", **versions}
