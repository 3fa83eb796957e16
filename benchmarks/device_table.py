"""Makes a table of the largest batch per TPU core or GPU, and of the step's memory and time, without these devices.

    python -m benchmarks.device_table [--devices=v5e,v4,gpu16] [--sizes=base,large] [--max_seq_lengths=128,512]
        [--recomputes=no,yes] [--scale] [--results=build/device_table.jsonl] [--python=PATH] [--libtpu=0.0.31]

The step is a pre-training step in bfloat16. The batch is a power of two. The step is compiled as in `tpu_compile` and
`gpu_compile`. gpu16 is a GPU with 16 GB; the programs of all GPUs are compiled for an H100. To save time, models with
2 and 4 layers are compiled. Each further layer adds the same memory and time, so the values for 12 or 24 layers are
extrapolated linearly from these two models. The table also has the memory by the formula of `--dry_run`.

Each cell of the table takes minutes on 2 idle cores. The program adds each cell to the file --results, does not
compute it again, and prints the cells in this file. To compile a complete model, use the other two programs.

With --scale, one batch of each model is compiled, for a v5e core and for an H100. The memory for other batches follows
from the part that grows with the batch. The other TPU generations differ only in their memory, and no time is printed.
"""

import concurrent.futures
import functools
import itertools
import json
import multiprocessing
import os
import sys
from collections.abc import Callable
from typing import NamedTuple

from absl import app, flags

from benchmarks import compiled_step, gpu_compile, tpu_compile
from benchmarks.compiled_step import Target
from bert_tf.config import BertConfig
from bert_tf.model import estimates
from bert_tf.runtime import json_files, reporting
from bert_tf.runtime.errors import InputError

TOPOLOGIES = {"v2": "2x2", "v3": "2x2", "v4": "2x2x1", "v5e": "2x2", "v5p": "2x2x1", "v6e": "2x2"}
GPUS = {f"gpu{gigabytes}": gigabytes for gigabytes in (16, 24, 40, 80)}
DEVICES = (*TOPOLOGIES, *GPUS)
_LAYERS = {"base": 12, "large": 24}
_FIRST_TOKENS = {"base": 2**14, "large": 2**13}  # tokens in the first batch that is tried
_DEPTHS = (2, 4)
_KEY = "device", "size", "length", "recompute", "compiler"

_DEVICES = flags.DEFINE_list("devices", list(DEVICES), "TPU generations, and GPUs by memory in GB (gpu16).")
_SIZES = flags.DEFINE_list("sizes", list(_LAYERS), "Released sizes of the model.")
_LENGTHS = flags.DEFINE_list("max_seq_lengths", ["128", "512"], "Tokens per sequence.")
_RECOMPUTE = flags.DEFINE_list("recomputes", ["no", "yes"], "Whether to use --gradient_checkpointing.")
_SCALE = flags.DEFINE_bool("scale", False, "Compile one batch of a model, and scale its memory to other batches.")
_RESULTS = flags.DEFINE_string("results", os.path.join("build", "device_table.jsonl"), "File of the finished cells.")


class Estimate(NamedTuple):
    """The estimates of a step.

    Attributes:
      weights: GiB of the weights and of the optimizer's state.
      peak: peak memory of the step in GiB.
      milliseconds: the time of a step; None if it is unknown.
    """

    weights: float
    peak: float
    milliseconds: float | None


def extrapolated(shallow: Estimate, deep: Estimate, layers: int) -> Estimate:
    """Returns the estimate of a model with `layers` layers from the estimates of two models with `_DEPTHS` layers."""
    factor = (layers - _DEPTHS[0]) / (_DEPTHS[1] - _DEPTHS[0])
    return Estimate(*(low + factor * (high - low) for low, high in zip(shallow, deep, strict=True)))


def exceeds(estimate: Estimate, factor: float, limit: float) -> bool:
    """Returns True if a batch that is `factor` times as large can't fit.

    The memory of the weights, their two moments and their gradients does not grow with the batch. All other memory
    does.
    """
    fixed = estimate.weights * 4 / 3
    return fixed + factor * (estimate.peak - fixed) > limit


def largest_batch(estimate: Callable[[int], Estimate], limit: float, first: int) -> tuple[int, Estimate | None]:
    """Finds the largest power of two that fits.

    Args:
      estimate: returns the estimate of a batch size.
      limit: memory of a core in GiB.
      first: the power of two to try first.

    Returns:
      The batch size and its estimate; 0 and None if a batch of 1 does not fit.
    """
    batch = first
    while batch and (found := estimate(batch)).peak > limit:
        batch //= 2
    if not batch:
        return 0, None
    while not exceeds(found, 2, limit) and (larger := estimate(2 * batch)).peak <= limit:
        batch, found = 2 * batch, larger
    return batch, found


def first_batch(estimate: Estimate, batch: int, limit: float) -> int:
    """Returns the power of two to try first, given the estimate of another batch size."""
    while exceeds(estimate, 1, limit) and batch > 1:
        batch, estimate = batch // 2, scaled(estimate, 0.5)
    while not exceeds(estimate, 2, limit):
        batch, estimate = 2 * batch, scaled(estimate, 2)
    return batch


def scaled(estimate: Estimate, factor: float) -> Estimate:
    """Returns the estimate of a batch that is `factor` times as large; see `exceeds`."""
    fixed = estimate.weights * 4 / 3
    return Estimate(estimate.weights, fixed + factor * (estimate.peak - fixed), None)


def scaled_to(estimate: Callable[[int], Estimate], compiled: int, batch: int) -> Estimate:
    """Returns the estimate of a batch, scaled from the batch that is compiled."""
    return scaled(estimate(compiled), batch / compiled)


def target_of(device: str) -> Target:
    """Returns the compiler for a device: a key of `TOPOLOGIES` or `GPUS`.

    Raises:
      InputError: if the device is unknown.
    """
    if device in GPUS:
        return gpu_compile.target_of("h100")._replace(gib=GPUS[device] * 1e9 / compiled_step.GIB)
    if device not in TOPOLOGIES:
        raise InputError(f"--devices: {device!r} is unknown. Use {', '.join(DEVICES)}.")
    return tpu_compile.target_of(f"{device}:{TOPOLOGIES[device]}", tpu_compile.LIBTPU.value)


def formula_gib(cell: dict) -> float:
    """Returns the memory of a cell's step in GiB by the formula of `--dry_run`."""
    from bert_tf.model import row_attention  # imported here because importing TensorFlow takes seconds

    device, length = cell["device"], cell["length"]
    parameters = round(cell["estimate"][0] * compiled_step.GIB / 12)
    keeps_scores = device in GPUS or length < row_attention.MIN_LENGTH
    shape, recomputes = (cell["batch"], length), cell["recompute"] == "yes"
    config = BertConfig.named(cell["size"])
    return estimates.memory_gib(config, parameters, parameters, *shape, "bfloat16", recomputes, keeps_scores)


def table(cells: list[dict]) -> list[dict]:
    """Returns a row for each cell. Devices without a batch that fits have no numbers."""
    rows = []
    for cell in sorted(cells, key=lambda cell: [cell["size"], cell["length"], cell["recompute"]]):
        row = {name: cell[name] for name in (*_KEY, "batch")} | dict.fromkeys(("ms", "GiB", "formula GiB"), "-")
        if cell["batch"]:
            row |= {"GiB": f"{cell['estimate'][1]:.1f}", "formula GiB": f"{formula_gib(cell):.1f}"}
            row |= {"ms": f"{cell['milliseconds']:.1f}"} if cell["milliseconds"] else {}
        rows.append(row)
    return rows


def main(_) -> None:
    cells = {tuple(cell[name] for name in _KEY): cell for cell in json_files.read_lines(_RESULTS.value, "--results")}
    os.makedirs(os.path.dirname(os.path.abspath(_RESULTS.value)), exist_ok=True)
    # A separate process frees the memory of the weights, which the compiler needs.
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:

        @functools.lru_cache(maxsize=8)
        def trace(platform: str, size: str, depth: int, length: int, batch: int, recompute: str) -> dict:
            settings = {"dtype": "bfloat16", "gradient_checkpointing": recompute == "yes"}
            arguments = (platform, "pretraining", size, batch, length, settings)
            return pool.submit(compiled_step.trace, *arguments, num_hidden_layers=depth).result()

        @functools.cache
        def estimate(compiler: str, batch: int, size: str, length: int, recompute: str) -> Estimate:
            """Returns the estimate of a complete model. GPUs share a compiler."""
            target, found = target_of(compiler), []
            for depth in _DEPTHS:
                step = trace(target.platform, size, depth, length, batch, recompute)
                report = compiled_step.compile_step(target, step)
                peak = sum(compiled_step.memory_of(report).values())
                milliseconds = float("nan") if "error" in report else compiled_step.milliseconds_of(report, target)
                name = f"{compiler} {size} {length} x {batch}, recompute {recompute}, {depth} layers"
                print(f"{name}: {peak:.2f} GiB, {milliseconds:.1f} ms", file=sys.stderr, flush=True)
                # The weights and their two moments.
                found.append(Estimate(3 * 4 * step["parameters"] / compiled_step.GIB, peak, milliseconds))
            return extrapolated(*found, _LAYERS[size])

        lengths = map(int, _LENGTHS.value)
        try:
            for size, length, recompute in itertools.product(_SIZES.value, lengths, _RECOMPUTE.value):
                model, before = (size, length, recompute), None
                for device in _DEVICES.value:
                    target = target_of(device)
                    # With recomputation, a larger batch fits.
                    first = _FIRST_TOKENS[size] // length * (4 if recompute == "yes" and not _SCALE.value else 1)
                    key = (device, *model, target.packages[-1] + (", scaled" if _SCALE.value else ""))
                    if key not in cells:
                        compiler = "gpu80" if device in GPUS else "v5e" if _SCALE.value else device
                        of_batch = functools.partial(estimate, compiler, size=size, length=length, recompute=recompute)
                        if _SCALE.value:
                            of_batch = functools.partial(scaled_to, of_batch, first)
                        if before:
                            first = first_batch(Estimate(*before["estimate"]), before["batch"], target.gib)
                        batch, found = largest_batch(of_batch, target.gib, first)
                        cells[key] = dict(zip(_KEY, key, strict=True)) | {"batch": batch, "estimate": found}
                        cells[key] |= {"milliseconds": found.milliseconds if found else None}
                        with open(_RESULTS.value, "a", encoding="utf-8") as writer:
                            print(json.dumps(cells[key]), file=writer)
                    before = cells[key] if cells[key]["estimate"] else before
        except InputError as error:
            print(error, file=sys.stderr)
            sys.exit(2)
    print(reporting.table(table(list(cells.values()))))


if __name__ == "__main__":
    app.run(main)
