"""Estimates the time and the memory of a training step on a TPU, without a TPU.

    python -m benchmarks.tpu_compile --topology=v5e:2x2 --size=base --length=128 --batch=32
        [--task=pretraining|classification|squad] [--recompute] [--accumulate=K] [--dtype=bfloat16] [--python=PATH]
        [--lengths=FILE --cores=8]

TensorFlow traces the step of the training loop in the form that runs on a TPU. The TPU's compiler, libtpu, compiles
the step for one core in a separate environment. If the environment does not exist, the program prints the commands that
make it. BERT_BASE takes one or two minutes on 2 idle cores, and 5 GB of memory.

The numbers are the compiler's estimates, for comparing variants of a step. They do not include the time of some
operations: see the note that the program prints.

--lengths is a file with the number of tokens of one sequence on each line. With this flag, the program also compiles
the step with packed rows. The code of the training programs chooses the rows for --cores cores, which share the
sequences of a step. The time includes the mean number of spill micro-batches, measured on other steps.

The exit status is 0 if the step fits into the core's memory, 1 if it does not, and 2 after any other error.
"""

import collections
import concurrent.futures
import dataclasses
import multiprocessing
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from absl import app, flags

from benchmarks.common import PEERS, Peer
from bert_tf.model.estimates import DEVICES
from bert_tf.runtime import reporting
from bert_tf.runtime.files import InputError

if TYPE_CHECKING:
    from bert_tf.config import BertConfig
    from bert_tf.sequences.placement import Packer

_PEER = os.path.join(PEERS, "tpu_compiler.py")
_ENVIRONMENT = os.path.join("build", "tpu_compiler")
_PACKAGES = ("jax==0.10.2", "jaxlib==0.10.2", "libtpu==0.0.42.1")
_TOP = 10
_GIB = 2**30
_STEPS = 256  # in the sample that selects the rows, and in the sample that measures them
_UNITS = {"M": 2**20, "G": 2**30, "T": 2**40}

_TOPOLOGY = flags.DEFINE_string("topology", "v5e:2x2", "Generation and chips, such as v5e:2x2 or v4:2x2x1.")
_SIZE = flags.DEFINE_string("size", "base", "Released size of the model.")
_LENGTH = flags.DEFINE_integer("length", 128, "Tokens per sequence.", lower_bound=1)
_BATCH = flags.DEFINE_integer("batch", 32, "Sequences per step and core.", lower_bound=1)
_TASK = flags.DEFINE_enum("task", "pretraining", ["pretraining", "classification", "squad"], "Training task.")
_RECOMPUTE = flags.DEFINE_bool("recompute", False, "Compile the step with --gradient_checkpointing.")
_ACCUMULATE = flags.DEFINE_integer("accumulate", 1, "Number of parts into which a batch is split.", lower_bound=1)
_DTYPE = flags.DEFINE_enum("dtype", "bfloat16", ["float32", "bfloat16"], "Data type of the matrix multiplications.")
_LENGTHS = flags.DEFINE_string("lengths", None, "File with the number of tokens of a sequence on each line.")
_CORES = flags.DEFINE_integer("cores", 1, "Cores that share the sequences of a step with packed rows.", lower_bound=1)
PYTHON = flags.DEFINE_string(
    "python", os.path.join(_ENVIRONMENT, "bin", "python"), "Interpreter of the environment with libtpu."
)


@dataclasses.dataclass(frozen=True)
class Core:
    """The properties of a topology's devices.

    Attributes:
      hertz: cycles per second.
      flops: bfloat16 operations per second.
      gib: usable memory in GiB, as the compiler reports it for a program that does not fit.
    """

    hertz: float
    flops: float
    gib: float


# A device is a core. Exception: on v5p it is a chip with two cores, which the compiler uses as one.
CORES = {
    name: Core(hertz, DEVICES[f"TPU {name}"].bfloat16 * 1e12, DEVICES[f"TPU {name}"].gib)
    for name, hertz in {"v2": 0.70e9, "v3": 0.94e9, "v4": 1.05e9, "v5e": 1.50e9, "v5p": 1.75e9, "v6e": 1.75e9}.items()
}


def environment_commands() -> str:
    """Returns the commands that make the compiler's environment."""
    python = os.path.join(_ENVIRONMENT, "bin", "python")
    return f"    {sys.executable} -m venv {_ENVIRONMENT}\n    {python} -m pip install {' '.join(_PACKAGES)}"


def core_of(topology: str) -> Core:
    """Returns the type of core in a topology such as "v5e:2x2".

    Raises:
      InputError: if the generation is unknown.
    """
    generation = topology.partition(":")[0]
    if generation not in CORES:
        raise InputError(f"--topology={topology}: the generation {generation!r} is unknown. Use {', '.join(CORES)}.")
    return CORES[generation]


def start_compiler(topology: str, python: str) -> Peer:
    """Starts the process of the compiler.

    Raises:
      InputError: if the environment does not exist, or the topology is unknown.
    """
    remedy = f"Make the environment:\n{environment_commands()}"
    try:
        compiler = Peer([python, _PEER, topology])
    except OSError as error:
        raise InputError(f"--python={python}: {error.strerror}. {remedy}") from None
    state = compiler.read()
    if "missing" in state:
        raise InputError(f"--python={python}: {state['missing']}. {remedy}")
    if "unknown" in state:
        raise InputError(f"--topology={topology}: {state['unknown']}. Pass a topology such as v5e:2x2 or v4:2x2x1.")
    return compiler


def trace(
    task: str, size: str, batch_size: int, length: int, settings: Mapping[str, Any], **changes: Any
) -> dict[str, Any]:
    """Traces the step and returns the fields of `tpu_step.Step`. `changes` are passed to `BertConfig.named`."""
    from benchmarks import tpu_step  # imported here because importing TensorFlow takes seconds
    from bert_tf.config import BertConfig

    config = BertConfig.named(size, **changes)
    return dataclasses.asdict(tpu_step.trace_step(task, config, batch_size, length, **settings))


def compile_step(compiler: Peer, stablehlo: bytes, rows: "Rows | None" = None) -> dict:
    """Compiles a step in the compiler's process and returns the report of `peers/tpu_compiler.py`.

    Args:
      compiler: the process.
      stablehlo: the step.
      rows: packed rows; None for a padded batch.
    """
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "step.mlirbc")
        with open(path, "wb") as writer:
            writer.write(stablehlo)
        return compiler.ask([path, *(rows[1:3] if rows else (1, 1))])


def milliseconds_of(report: dict, core: Core) -> float:
    """Returns the estimated time of a compiled step."""
    return sum(row[0] * row[1] for row in report["instructions"]) / core.hertz * 1e3


class Rows(NamedTuple):
    """The rows that the training programs choose.

    Attributes:
      packer: the packer with the shape of a step.
      spills: the mean number of spill micro-batches in steps that have some, on the core with the most.
      share: the fraction of the steps that have spill micro-batches.
      gap: the fraction of the computed positions that are padding.
      flops: floating-point operations of one core's step without padding.
    """

    packer: "Packer"
    spills: float
    share: float
    gap: float
    flops: float


def chosen_rows(lengths: np.ndarray, config: "BertConfig") -> Rows:
    """Chooses the rows from a sample of steps, and measures spills and padding on other steps."""
    from benchmarks.tpu_step import predictions_of
    from bert_tf.sequences.placement import Packer, Sizes

    rng, length, most = np.random.default_rng(0), _LENGTH.value, predictions_of(_LENGTH.value)

    def step() -> Sizes:
        own = np.minimum(rng.choice(lengths, _BATCH.value * _CORES.value), length)
        predictions = np.clip(np.rint(0.15 * own), 1, most).astype(int) * (_TASK.value == "pretraining")
        return Sizes(own[:, np.newaxis], predictions)

    most *= _TASK.value == "pretraining"
    packer = Packer(_CORES.value, _ACCUMULATE.value).with_shape([step() for _ in range(_STEPS)], length, most)
    spills, tokens, positions, flops = [], 0, 0, 0.0
    for sizes in (step() for _ in range(_STEPS)):
        placed = packer.place(sizes, length)
        spills.append(max(own[1].used if own[1:] else 0 for own in placed))
        tokens += sizes.lengths.sum()
        positions += length * sum(len(own[0].examples) * own[0].rows for own in placed)
        positions += length * sum(own[1].used * own[1].rows for own in placed if own[1:])
        flops += 3 * (config.flops(sizes.lengths).sum() + config.flops(0, sizes.predictions.sum())) / _CORES.value
    used = [number for number in spills if number]
    mean = float(np.mean(used)) if used else 0.0
    return Rows(packer, mean, len(used) / _STEPS, 1 - tokens / positions, flops / _STEPS)


def compiled(compiler: Peer, rows: Rows | None = None) -> tuple[dict, dict]:
    """Traces the step and compiles it.

    Args:
      compiler: the process of the compiler.
      rows: packed rows; None for a padded batch.

    Returns:
      The report of `peers/tpu_compiler.py`, and the fields of `tpu_step.Step`.
    """
    settings = {
        "dtype": _DTYPE.value,
        "gradient_accumulation_steps": _ACCUMULATE.value,
        "gradient_checkpointing": _RECOMPUTE.value,
        "packer": rows and rows.packer,
    }
    print("Tracing the step...", flush=True)
    # A separate process frees the memory of the weights, which the compiler needs.
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        step = pool.submit(trace, _TASK.value, _SIZE.value, _BATCH.value, _LENGTH.value, settings).result()
    print("Compiling it. This takes minutes...", flush=True)
    return compile_step(compiler, step["stablehlo"], rows), step


def memory_of(report: dict) -> dict[str, float]:
    """Returns the memory of a step by purpose, in GiB, also if the compiler reports that the step does not fit.

    Raises:
      InputError: if the compiler reports another error.
    """
    names = ("arguments", "results", "temporaries", "code")
    if "error" in report:
        found = re.search(r"temporaries \(([\d.]+)([MGT])\)|Used ([\d.]+)([MGT]) of", report["error"])
        if not found:
            raise InputError(f"The compiler reports an error: {report['error']}")
        temporaries, unit, total, total_unit = found.groups()
        if temporaries:
            report = {"temporaries": float(temporaries) * _UNITS[unit], "arguments": report["arguments"]}
        else:
            report = {"total": float(total) * _UNITS[total_unit]}
        names = tuple(report)
    return {name: report[name] / _GIB for name in names}


def print_memory(report: dict, core: Core) -> bool:
    """Prints the memory of a step. Returns True if the step fits."""
    gib = memory_of(report)
    peak = sum(gib.values())
    parts = ", ".join(f"{name} {size:.2f}" for name, size in gib.items())
    print(f"peak memory of a core: {peak:.2f} GiB ({parts}); limit: {core.gib:.2f} GiB")
    fits = peak <= core.gib
    print("fits" if fits else f"does not fit: {peak - core.gib:.2f} GiB too much")
    return fits


def source_of(name: str, sources: Mapping[str, str]) -> str:
    """Returns the source lines of an operation in the compiled program.

    The name of a gradient's operation starts with the name of the differentiated operation.

    Args:
      name: the name in the program, which can be longer than the name in the graph.
      sources: see `tpu_step.Step`.
    """
    parts = name.split("/")
    prefix = "gradient of " if "gradient_tape" in parts else ""
    parts = [part for part in parts if part != "gradient_tape"]
    for end in range(len(parts), 0, -1):
        found = sources.get("/".join(parts[:end]))
        if found:
            return prefix + found
    return prefix + sources.get(name, "")


def print_operations(instructions: list, sources: dict[str, str], core: Core, milliseconds: float) -> None:
    """Prints the most expensive operations. Equal operations of all layers share a row."""
    totals, counts = collections.Counter(), collections.Counter()
    for cycles, times, name, shape in instructions:
        key = (
            re.sub(r"layer_\d+", "layer_*", name),
            re.sub(r"\{[^}]*\}", "", shape),
            source_of(name, sources),
        )
        totals[key] += cycles * times
        counts[key] += times
    rows = []
    for key, cycles in totals.most_common(_TOP):
        name, shape, source = key
        time = cycles / core.hertz * 1e3
        row = {"ms": f"{time:.2f}", "share": f"{time / milliseconds:.1%}", "times": counts[key]}
        rows.append(row | {"operation": name[-70:], "shape": shape[:50], "source": source})
    print(reporting.table(rows))


def print_packed(core: Core, padded: float | None) -> bool:
    """Compiles the step with packed rows and prints the estimates. Returns True if the step fits.

    Args:
      core: the core.
      padded: milliseconds of the padded step; None if it does not fit.
    """
    from bert_tf.config import BertConfig

    try:
        lengths = np.loadtxt(_LENGTHS.value, dtype=int, ndmin=1)
    except (OSError, ValueError) as error:
        raise InputError(f"--lengths={_LENGTHS.value}: {error}. Pass a file with a number on each line.") from None
    rows = chosen_rows(lengths, BertConfig.named(_SIZE.value))
    shape = rows.packer.shape
    print(f"\npacked rows of a core: {shape.rows} of {_LENGTH.value} positions, padded: {_BATCH.value}")
    print(f"steps with spill micro-batches: {rows.share:.1%}; {rows.spills:.1f} of {shape.spill_rows} rows in each")
    print(f"padding in packed rows: {rows.gap:.1%} of the positions")
    # The compiler's memory grows with each program, so each program gets a new process.
    with start_compiler(_TOPOLOGY.value, PYTHON.value) as compiler:
        report, _ = compiled(compiler, rows)
    if "error" not in report:
        milliseconds = milliseconds_of(report, core)
        ratio = f", {milliseconds / padded:.2f} of the padded step" if padded else ""
        share = rows.flops / core.flops / milliseconds * 1e3
        print(f"estimated packed step: {milliseconds:.1f} ms{ratio}; {share:.1%} of the peak without padding")
    return print_memory(report, core)


def main(_) -> None:
    milliseconds = None
    try:
        core = core_of(_TOPOLOGY.value)
        with start_compiler(_TOPOLOGY.value, PYTHON.value) as compiler:
            report, step = compiled(compiler)
        if "error" not in report:
            milliseconds = milliseconds_of(report, core)
            print(f"estimated step: {milliseconds:.1f} ms")
        fits = print_memory(report, core)
        if _LENGTHS.value:
            fits = print_packed(core, milliseconds)
    except InputError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    print(f"model: {step['parameters']:,} trained parameters, {step['flops'] / 1e12:.3f} TFLOPs per step")
    if "error" not in report:
        share = step["flops"] / core.flops / milliseconds * 1e3
        print(f"fraction of the peak of {core.flops / 1e12:g} TFLOP/s: {share:.1%}")
        print("\nThe most expensive operations:\n")
        print_operations(report["instructions"], step["sources"], core, milliseconds)
    print(
        "\nThese are the compiler's estimates, without all-reduce (the sums over cores), random numbers, gather and "
        "scatter.\nReading the input is not part of the step."
    )
    sys.exit(0 if fits else 1)


if __name__ == "__main__":
    app.run(main)
