"""Estimates the time and the memory of a training step on a TPU, without a TPU.

    python -m benchmarks.tpu_compile --topology=v5e:2x2 --size=base --length=128 --batch=32
        [--task=pretraining|classification|squad] [--recompute] [--accumulate=K] [--dtype=bfloat16] [--python=PATH]
        [--lengths=FILE --cores=8] [--libtpu=0.0.31]

TensorFlow traces the step of the training loop in the form that runs on a TPU. The TPU's compiler, libtpu, compiles
the step for one core in a separate environment. If the environment does not exist, the program prints the commands that
make it. BERT_BASE takes one or two minutes on 2 idle cores, and 5 GB of memory.

The default is the version of libtpu in requirements-tpu.txt. With --libtpu=0.0.42.1, a later version compiles the step.
TensorFlow can't run with it.

The numbers are the compiler's estimates, for comparing variants of a step. They do not include the time of some
operations: see the note that the program prints.

--lengths is a file with the number of tokens of one sequence on each line. With this flag, the program also compiles
the step with packed rows. The code of the training programs chooses the rows for --cores cores, which share the
sequences of a step. The time includes the mean number of spill micro-batches, measured on other steps.

The exit status is 0 if the step fits into the core's memory, 1 if it does not, and 2 after any other error.
"""

import dataclasses

from absl import app, flags

from benchmarks import compiled_step
from benchmarks.compiled_step import Target
from bert_tf.model.estimates import DEVICES
from bert_tf.runtime.errors import InputError

# The versions of libtpu, with a version of jax for each. TensorFlow uses the first one.
_JAX_VERSIONS = {"0.0.31": "0.8.2", "0.0.42.1": "0.10.2"}
PINNED = next(iter(_JAX_VERSIONS))
_NOTE = (
    "These are the compiler's estimates, without all-reduce (the sums over cores), random numbers, gather and scatter."
)

LIBTPU = flags.DEFINE_enum("libtpu", PINNED, list(_JAX_VERSIONS), "Version of the compiler.")
_TOPOLOGY = flags.DEFINE_string("topology", "v5e:2x2", "Generation and chips, such as v5e:2x2 or v4:2x2x1.")


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


def target_of(topology: str, libtpu: str = PINNED) -> Target:
    """Returns the compiler for a core of a topology such as "v5e:2x2", in a version of libtpu.

    Raises:
      InputError: if the generation is unknown.
    """
    flag, generation = f"--topology={topology}", topology.partition(":")[0]
    if generation not in CORES:
        raise InputError(f"{flag}: the generation {generation!r} is unknown. Use {', '.join(CORES)}.")
    core, jax = CORES[generation], _JAX_VERSIONS[libtpu]
    return Target(
        platform="TPU",
        script="tpu_compiler.py",
        argument=topology,
        flag=f"{flag} (the form is v5e:2x2 or v4:2x2x1)",
        packages=(f"jax=={jax}", f"jaxlib=={jax}", f"libtpu=={libtpu}"),
        flops=core.flops,
        gib=core.gib,
        milliseconds=lambda row: row[0] / core.hertz * 1e3,
    )


def _print_time(_instructions: list, milliseconds: float) -> None:
    print(f"estimated step: {milliseconds:.1f} ms")


def main(_) -> None:
    compiled_step.run(lambda: target_of(_TOPOLOGY.value, LIBTPU.value), _print_time, _NOTE)


if __name__ == "__main__":
    app.run(main)
