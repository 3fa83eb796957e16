"""Shared by `tpu_compile` and `gpu_compile`: traces a training step, and compiles it in a separate process."""

import collections
import concurrent.futures
import dataclasses
import multiprocessing
import os
import pathlib
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from absl import flags

from benchmarks.common import PEERS, Peer
from bert_tf.runtime import reporting
from bert_tf.runtime.errors import InputError

if TYPE_CHECKING:
    from bert_tf.config import BertConfig
    from bert_tf.sequences.placement import Packer

_STEPS = 256  # the size of two samples of steps: one selects the rows, and one measures them
GIB = 2**30
_UNITS = {"M": 2**20, "G": 2**30, "T": 2**40}

SIZE = flags.DEFINE_string("size", "base", "Released size of the model.")
LENGTH = flags.DEFINE_integer("length", 128, "Tokens per sequence.", lower_bound=1)
BATCH = flags.DEFINE_integer("batch", 32, "Sequences per step and device.", lower_bound=1)
TASK = flags.DEFINE_enum("task", "pretraining", ["pretraining", "classification", "squad"], "Training task.")
RECOMPUTE = flags.DEFINE_bool("recompute", False, "Compile the step with --gradient_checkpointing.")
ACCUMULATE = flags.DEFINE_integer("accumulate", 1, "Number of micro-batches in a batch.", lower_bound=1)
DTYPE = flags.DEFINE_enum("dtype", "bfloat16", ["float32", "bfloat16"], "Data type of the matrix multiplications.")
LENGTHS = flags.DEFINE_string("lengths", None, "File with the number of tokens of a sequence on each line.")
CORES = flags.DEFINE_integer("cores", 1, "Devices that share the sequences of a step with packed rows.", lower_bound=1)
DUMP = flags.DEFINE_string(
    "dump", None, "File for the StableHLO code of the step. Names are added for several programs."
)
PROGRAMS = flags.DEFINE_list("programs", [], "StableHLO files to compile, such as the --dump of other versions.")
TOP = flags.DEFINE_integer("top", 10, "Number of the most expensive operations to print.", lower_bound=1)
PYTHON = flags.DEFINE_string("python", None, "Interpreter of the compiler's environment, if it is not in build/.")


class Target(NamedTuple):
    """A device that is not present, and the compiler for it.

    Attributes:
      platform: "TPU" or "GPU".
      script: the compiler's script in `benchmarks/peers`.
      argument: the argument of the script, which describes the device.
      flag: the flag that selects the device, for messages.
      packages: the packages of the compiler's environment.
      flops: operations per second in the dtype of the matrix multiplications.
      gib: usable memory in GiB.
      milliseconds: returns the time of one execution of an instruction; see `peers/compiler_process.py`.
    """

    platform: str
    script: str
    argument: str
    flag: str
    packages: tuple[str, ...]
    flops: float
    gib: float
    milliseconds: Callable[[list], float]

    @property
    def environment(self) -> str:
        """The directory of the compiler's environment, which contains the version."""
        return os.path.join("build", f"{self.script.removesuffix('.py')}-{self.packages[-1].rpartition('=')[2]}")


def start_compiler(target: Target) -> Peer:
    """Starts the process of the compiler.

    Raises:
      InputError: if the environment does not exist, or the compiler does not support the device.
    """
    new_python = os.path.join(target.environment, "bin", "python")
    packages = shlex.join(target.packages)
    commands = f"    {sys.executable} -m venv {target.environment}\n    {new_python} -m pip install {packages}"
    remedy, python = f"Make the environment:\n{commands}", PYTHON.value or new_python
    try:
        compiler = Peer([python, os.path.join(PEERS, target.script), target.argument])
    except OSError as error:
        raise InputError(f"--python={python}: {error.strerror}. {remedy}") from None
    state = compiler.read()
    if "missing" in state:
        raise InputError(f"--python={python}: {state['missing']}. {remedy}")
    if "unknown" in state:
        raise InputError(f"{target.flag}: {state['unknown']}")
    return compiler


def trace(
    platform: str, task: str, size: str, batch_size: int, length: int, settings: Mapping[str, Any], **changes: Any
) -> dict[str, Any]:
    """Traces the step and returns the fields of `traced_step.Step`. `changes` are passed to `BertConfig.named`."""
    from benchmarks import traced_step  # imported here because importing TensorFlow takes seconds
    from bert_tf.config import BertConfig

    config = BertConfig.named(size, **changes)
    return dataclasses.asdict(traced_step.trace_step(platform, task, config, batch_size, length, **settings))


def compile_step(target: Target, step: Mapping[str, Any], iterations: tuple[float, float] = (1, 1)) -> dict:
    """Compiles the programs of a step and returns one report in the format of `peers/compiler_process.py`.

    Args:
      target: the device.
      step: the fields of `traced_step.Step`.
      iterations: the mean number of iterations of a loop that depends on the data, and the share of the steps that take
        the costly branch of a conditional.

    Returns:
      The instructions of all programs, and the memory of the program that needs most.
    """
    reports = []
    for name, program in step["programs"].items():
        # The compiler's memory grows with each program, so each program gets a new process.
        with start_compiler(target) as compiler, tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory, "step.mlirbc")
            path.write_bytes(program)
            reports.append(compiler.ask([str(path), *iterations]) | {"unused": step["unused"].get(name, 0)})
    largest = max(reports, key=lambda report: ("error" in report, sum(memory_of(report).values())))
    return largest | {"instructions": [row for report in reports for row in report.get("instructions", [])]}


def milliseconds_of(report: dict, target: Target) -> float:
    """Returns the estimated time of a compiled step."""
    return sum(target.milliseconds(row) * row[1] for row in report["instructions"])


class Rows(NamedTuple):
    """The rows that the training programs choose.

    Attributes:
      packer: the packer with the shape of a step.
      spills: the mean number of spill micro-batches in steps that have some, on the device with the most.
      share: the fraction of the steps that have spill micro-batches.
      gap: the fraction of the computed positions that are padding.
      flops: floating-point operations of one device's step without padding.
    """

    packer: "Packer"
    spills: float
    share: float
    gap: float
    flops: float


def chosen_rows(lengths: np.ndarray, config: "BertConfig") -> Rows:
    """Chooses the rows from a sample of steps, and measures spills and padding on other steps."""
    from benchmarks.traced_step import predictions_of
    from bert_tf.sequences.placement import Packer, Sizes

    rng, length, most = np.random.default_rng(0), LENGTH.value, predictions_of(LENGTH.value)

    def step() -> Sizes:
        own = np.minimum(rng.choice(lengths, BATCH.value * CORES.value), length)
        predictions = np.clip(np.rint(0.15 * own), 1, most).astype(int) * (TASK.value == "pretraining")
        return Sizes(own[:, np.newaxis], predictions)

    most *= TASK.value == "pretraining"
    packer = Packer(CORES.value, ACCUMULATE.value).with_shape([step() for _ in range(_STEPS)], length, most)
    spills, tokens, positions, flops = [], 0, 0, 0.0
    for sizes in (step() for _ in range(_STEPS)):
        placed = packer.place(sizes, length)
        spills.append(max(own[1].used if own[1:] else 0 for own in placed))
        tokens += sizes.lengths.sum()
        positions += length * sum(len(own[0].examples) * own[0].rows for own in placed)
        positions += length * sum(own[1].used * own[1].rows for own in placed if own[1:])
        flops += 3 * (config.flops(sizes.lengths).sum() + config.flops(0, sizes.predictions.sum())) / CORES.value
    used = [number for number in spills if number]
    mean = float(np.mean(used)) if used else 0.0
    return Rows(packer, mean, len(used) / _STEPS, 1 - tokens / positions, flops / _STEPS)


def compiled(target: Target, rows: Rows | None = None) -> tuple[dict, dict]:
    """Traces the step and compiles it.

    Args:
      target: the device.
      rows: packed rows; None for a padded batch.

    Returns:
      The report of `peers/compiler_process.py`, and the fields of `traced_step.Step`.
    """
    settings = {
        "dtype": DTYPE.value,
        "gradient_accumulation_steps": ACCUMULATE.value,
        "gradient_checkpointing": RECOMPUTE.value,
        "packer": rows and rows.packer,
    }
    start_compiler(target).close()  # fails now if the environment is missing
    if PROGRAMS.value:
        programs = {path: pathlib.Path(path).read_bytes() for path in PROGRAMS.value}
        step = {"programs": programs, "unused": {}, "sources": {}, "flops": 0, "parameters": 0}
        return compile_step(target, step), step
    print("Tracing the step...", flush=True)
    arguments = (target.platform, TASK.value, SIZE.value, BATCH.value, LENGTH.value, settings)
    # A separate process frees the memory of the weights, which the compiler needs.
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        step = pool.submit(trace, *arguments).result()
    for name, program in step["programs"].items() if DUMP.value else ():
        dump = pathlib.Path(DUMP.value)
        path = dump if len(step["programs"]) == 1 else dump.with_suffix(f".{name}{dump.suffix}")
        path.write_bytes(program)
        print(f"Wrote {path}.")
    print("Compiling it. This takes minutes...", flush=True)
    return compile_step(target, step, (rows.spills, rows.share) if rows else (1, 1)), step


def memory_of(report: dict) -> dict[str, float]:
    """Returns the memory of a step by purpose, in GiB, also if the compiler reports that the step does not fit.

    Raises:
      InputError: if the compiler reports another error.
    """
    names = ("arguments", "results", "temporaries", "code", *(["unused"] if report.get("unused") else []))
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
    return {name: report[name] / GIB for name in names}


def print_memory(report: dict, target: Target) -> bool:
    """Prints the memory of a step. Returns True if the step fits."""
    gib = memory_of(report)
    peak = sum(gib.values())
    parts = ", ".join(f"{name} {size:.2f}" for name, size in gib.items())
    print(f"peak memory of a device: {peak:.2f} GiB ({parts}); limit: {target.gib:.2f} GiB")
    fits = peak <= target.gib
    print("fits" if fits else f"does not fit: {peak - target.gib:.2f} GiB too much")
    return fits


def source_of(name: str, sources: Mapping[str, str]) -> str:
    """Returns the source lines of an operation in the compiled program.

    The name of a gradient's operation starts with the name of the differentiated operation.

    Args:
      name: the name in the program, which can be longer than the name in the graph.
      sources: see `traced_step.Step`.
    """
    parts = name.split("/")
    prefix = "gradient of " if "gradient_tape" in parts else ""
    parts = [part for part in parts if part != "gradient_tape"]
    for end in range(len(parts), 0, -1):
        found = sources.get("/".join(parts[:end]))
        if found:
            return prefix + found
    return prefix + sources.get(name, "")


def print_operations(rows: Iterable[list], sources: dict[str, str], milliseconds: float, top: int = 10) -> None:
    """Prints the most expensive operations. Equal operations of all layers share a row of the table.

    Args:
      rows: [milliseconds, executions, operation name, shape, ...] of each instruction.
      sources: see `traced_step.Step`.
      milliseconds: the time of the step.
      top: the number of rows of the table.
    """
    totals, counts = collections.Counter(), collections.Counter()
    for time, times, name, shape, *_ in rows:
        key = (
            re.sub(r"layer_\d+", "layer_*", name),
            re.sub(r"\{[^}]*\}", "", shape),
            source_of(name, sources),
        )
        totals[key] += time * times
        counts[key] += times
    table = []
    for key, time in totals.most_common(top):
        name, shape, source = key
        row = {"ms": f"{time:.2f}", "share": f"{time / milliseconds:.1%}", "times": counts[key]}
        table.append(row | {"operation": name[-70:], "shape": shape[:50], "source": source})
    print(reporting.table(table))


def print_packed(target: Target, padded: float | None) -> bool:
    """Compiles the step with packed rows and prints the estimates. Returns True if the step fits.

    Args:
      target: the device.
      padded: milliseconds of the padded step; None if it does not fit.
    """
    from bert_tf.config import BertConfig

    try:
        lengths = np.loadtxt(LENGTHS.value, dtype=int, ndmin=1)
    except (OSError, ValueError) as error:
        raise InputError(f"--lengths={LENGTHS.value}: {error}. Pass a file with a number on each line.") from None
    rows = chosen_rows(lengths, BertConfig.named(SIZE.value))
    shape = rows.packer.shape
    print(f"\npacked rows of a device: {shape.rows} of {LENGTH.value} positions, padded: {BATCH.value}")
    print(f"steps with spill micro-batches: {rows.share:.1%}; {rows.spills:.1f} of {shape.spill_rows} rows in each")
    print(f"padding in packed rows: {rows.gap:.1%} of the positions")
    report, _ = compiled(target, rows)
    if "error" not in report:
        milliseconds = milliseconds_of(report, target)
        ratio = f", {milliseconds / padded:.2f} of the padded step" if padded else ""
        share = rows.flops / target.flops / milliseconds * 1e3
        print(f"estimated packed step: {milliseconds:.1f} ms{ratio}; {share:.1%} of the peak without padding")
    return print_memory(report, target)


def run(target_of: Callable[[], Target], print_time: Callable[[list, float], None], note: str) -> None:
    """Compiles the step that the flags describe, prints the estimates, and ends the process.

    The exit status is 0 if the step fits into the device's memory, 1 if it does not, and 2 after any other error.

    Args:
      target_of: returns the device; raises `InputError` if it is unknown.
      print_time: prints the time of a step, given the instructions and their milliseconds.
      note: a sentence that names the parts of a step without an estimate.
    """
    milliseconds = None
    try:
        target = target_of()
        report, step = compiled(target)
        if "error" not in report:
            milliseconds = milliseconds_of(report, target)
            print_time(report["instructions"], milliseconds)
        fits = print_memory(report, target)
        if LENGTHS.value:
            fits = print_packed(target, milliseconds)
    except InputError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    print(f"model: {step['parameters']:,} trained parameters, {step['flops'] / 1e12:.3f} TFLOPs per step")
    if "error" not in report:
        share = step["flops"] / target.flops / milliseconds * 1e3
        print(f"fraction of the peak of {target.flops / 1e12:g} TFLOP/s: {share:.1%}")
        print("\nThe most expensive operations:\n")
        rows = [[target.milliseconds(row), *row[1:]] for row in report["instructions"]]
        print_operations(rows, step["sources"], milliseconds, TOP.value)
    print(f"\n{note}\nReading the input is not part of the step.")
    sys.exit(0 if fits else 1)
