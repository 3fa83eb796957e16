"""Makes a table of the largest batch per TPU core and the estimated step time, without a TPU.

    python -m benchmarks.tpu_table [--generations=v5e,v4] [--sizes=base,large] [--max_seq_lengths=128,512]
        [--results=build/tpu_table.jsonl] [--python=PATH]

The step is a pre-training step in bfloat16. The batch is a power of two. As in `tpu_compile`, libtpu compiles the step
for one core. To save time, it compiles models with 2 and 4 layers. Each further layer adds the same memory and time, so
the values for 12 or 24 layers are extrapolated linearly from these two models.

Each cell of the table takes minutes on 2 idle cores. The program adds each cell to the file --results, does not
compute it again, and prints the cells in this file. To compile a complete model, use `tpu_compile`.
"""

import concurrent.futures
import functools
import json
import multiprocessing
import os
import sys
from collections.abc import Callable
from typing import NamedTuple

from absl import app, flags

from benchmarks import compiled_step, tpu_compile
from bert_tf.runtime import json_files, reporting
from bert_tf.runtime.errors import InputError

TOPOLOGIES = {"v2": "2x2", "v3": "2x2", "v4": "2x2x1", "v5e": "2x2", "v5p": "2x2x1", "v6e": "2x2"}
_LAYERS = {"base": 12, "large": 24}
_FIRST_TOKENS = {"base": 2**15, "large": 2**13}  # tokens in the first batch that is tried
_DEPTHS = (2, 4)

_GENERATIONS = flags.DEFINE_list("generations", list(TOPOLOGIES), "Generations of TPUs.")
_SIZES = flags.DEFINE_list("sizes", list(_LAYERS), "Released sizes of the model.")
_LENGTHS = flags.DEFINE_list("max_seq_lengths", ["128", "512"], "Tokens per sequence.")
_RESULTS = flags.DEFINE_string("results", os.path.join("build", "tpu_table.jsonl"), "File of the finished cells.")


class Estimate(NamedTuple):
    """The estimates of a step.

    Attributes:
      weights: GiB of the weights and of the optimizer's state.
      peak: peak memory of the step in GiB.
      milliseconds: the time of a step.
    """

    weights: float
    peak: float
    milliseconds: float


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
    return estimate._replace(peak=fixed + factor * (estimate.peak - fixed))


def table(cells: list[dict]) -> list[dict]:
    """Returns a row for each generation, with the batch size and the milliseconds for each model."""
    columns = [f"{size} {length}" for size in _LAYERS for length in (128, 512)]
    rows = {}
    for cell in cells:
        name, batch = cell["generation"], cell["batch"]
        row = rows.setdefault(name, {"generation": name} | dict.fromkeys(columns, "-"))
        row[f"{cell['size']} {cell['length']}"] = f"{batch} ({cell['milliseconds']:.0f} ms)" if batch else "none"
    return [rows[generation] for generation in TOPOLOGIES if generation in rows]


def measured_cell(
    trace: Callable[[str, int, int, int], dict], generation: str, size: str, length: int, before: dict | None
) -> dict:
    """Finds the largest batch for a generation of TPUs.

    Args:
      trace: returns the fields of `traced_step.Step`, given model size, number of layers, length and batch size.
      generation: the generation.
      size: the model's size.
      length: number of tokens per sequence.
      before: the cell of another generation, or None.
    """
    topology = f"{generation}:{TOPOLOGIES[generation]}"
    target = tpu_compile.target_of(topology)

    def compiled(depth: int, batch: int) -> Estimate:
        report = compiled_step.compile_step(target, trace(size, depth, length, batch))
        gib = compiled_step.memory_of(report)
        milliseconds = float("nan") if "error" in report else compiled_step.milliseconds_of(report, target)
        used = f"{sum(gib.values()):.2f} GiB, {milliseconds:.1f} ms"
        print(f"{topology} {size} {length} x {batch}, {depth} layers: {used}", file=sys.stderr, flush=True)
        return Estimate(gib.get("arguments", float("nan")), sum(gib.values()), milliseconds)

    @functools.cache
    def estimate(batch: int) -> Estimate:
        return extrapolated(*(compiled(depth, batch) for depth in _DEPTHS), _LAYERS[size])

    first = _FIRST_TOKENS[size] // length
    if before:
        first = first_batch(Estimate(*before["estimate"]), before["batch"], target.gib)
    batch, found = largest_batch(estimate, target.gib, first)
    return {
        "generation": generation,
        "size": size,
        "length": length,
        "batch": batch,
        "estimate": found,
        "milliseconds": found.milliseconds if found else None,
    }


def read_cells(path: str) -> dict[tuple[str, str, int], dict]:
    """Returns the finished cells by generation, size and length."""
    cells = json_files.read_lines(path, "--results")
    return {(cell["generation"], cell["size"], cell["length"]): cell for cell in cells}


def main(_) -> None:
    cells = read_cells(_RESULTS.value)
    os.makedirs(os.path.dirname(os.path.abspath(_RESULTS.value)), exist_ok=True)
    # A separate process frees the memory of the weights, which the compiler needs.
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:

        @functools.lru_cache(maxsize=8)
        def trace(size: str, depth: int, length: int, batch: int) -> dict:
            arguments = ("TPU", "pretraining", size, batch, length, {"dtype": "bfloat16"})
            return pool.submit(compiled_step.trace, *arguments, num_hidden_layers=depth).result()

        try:
            for size in _SIZES.value:
                for length in map(int, _LENGTHS.value):
                    before = None
                    for generation in _GENERATIONS.value:
                        key = (generation, size, length)
                        if key not in cells:
                            tpu_compile.target_of(generation)
                            cells[key] = measured_cell(trace, *key, before)
                            with open(_RESULTS.value, "a", encoding="utf-8") as writer:
                                print(json.dumps(cells[key]), file=writer)
                        before = cells[key] if cells[key]["estimate"] else before
        except InputError as error:
            print(error, file=sys.stderr)
            sys.exit(2)
    print(reporting.table(table(list(cells.values()))))


if __name__ == "__main__":
    app.run(main)
