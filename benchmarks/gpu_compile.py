"""Computes a lower bound of the time of a training step on a GPU, and the step's memory, without a GPU.

    python -m benchmarks.gpu_compile --device=h100 --size=base --length=128 --batch=32
        [--task=pretraining|classification|squad] [--recompute] [--accumulate=K] [--dtype=bfloat16] [--python=PATH]
        [--lengths=FILE --cores=8] [--dump=FILE] [--programs=FILE,FILE] [--top=10]

TensorFlow traces the two programs of a training step on a GPU: the gradients, and the update of the weights. XLA
compiles them in a separate environment, which has a later version of XLA than TensorFlow. If the environment does not
exist, the program prints the commands that make it (4 GB; no driver is needed). BERT_BASE takes one or two minutes on 2
idle cores.

The program counts the bytes and the operations of each kernel. The bound assumes that:

- a kernel reads each operand once and writes each result once, with 85% of the memory's bandwidth;
- a bfloat16 matrix multiplication has 70% of the peak, and a float32 matrix multiplication 90%;
- a kernel takes 2 microseconds longer than its memory traffic or its operations, whichever takes longer.

The bound is for comparing variants. A step of 32 sequences of 128 tokens, measured once on an H100, took 20 ms.
XLA selects the kernels of matrix multiplications by measuring them on a GPU, so a GPU can run other kernels.

--dump=step.mlirbc writes the programs as StableHLO to step.gradients.mlirbc and step.update.mlirbc. --programs counts
such files instead of a traced step. For --lengths and the exit status, see `tpu_compile`.
"""

import collections

from absl import app, flags

from benchmarks import compiled_step
from benchmarks.compiled_step import DTYPE, Target
from bert_tf.model.estimates import DEVICES
from bert_tf.runtime import reporting

_PACKAGES = ("jax[cuda12]==0.10.2",)
_NOTE = "The time is a lower bound, without the sums over GPUs. See the assumptions in benchmarks/gpu_compile.py."
_BANDWIDTH_SHARE = 0.85
_PEAK_SHARES = {"bf16": 0.7, "f32": 0.9}
_MILLISECONDS_PER_KERNEL = 2e-3

# XLA's properties of GPUs (openxla/xla, xla/backends/gpu/target_config/specs: h100_sxm, h200 and a100_sxm_40).
_COMMON = {
    "block_dim_limit_x": 2**31 - 1,
    "block_dim_limit_y": 65535,
    "block_dim_limit_z": 65535,
    "registers_per_block_limit": 65536,
    "registers_per_core_limit": 65536,
    "shared_memory_per_block": 49152,
    "threads_per_block_limit": 1024,
    "threads_per_warp": 32,
}
_HOPPER = {
    "clock_rate_ghz": 1.98,
    "core_count": 132,
    "cuda_compute_capability": "{ major: 9 }",
    "fpus_per_core": 128,
    "l2_cache_size": 52428800,
    "shared_memory_per_block_optin": 232448,
    "shared_memory_per_core": 233472,
    "threads_per_core_limit": 2048,
}
GPUS = {
    "h100": _HOPPER | {"device_memory_size": 84942979072, "memory_bandwidth": 3352320000000},
    "h200": _HOPPER | {"device_memory_size": 151397597184, "memory_bandwidth": 4800000000000},
    "a100": {
        "clock_rate_ghz": 1.41,
        "core_count": 108,
        "cuda_compute_capability": "{ major: 8 }",
        "device_memory_size": 42331013120,
        "fpus_per_core": 64,
        "l2_cache_size": 41943040,
        "memory_bandwidth": 1555200000000,
        "shared_memory_per_block_optin": 166912,
        "shared_memory_per_core": 167936,
        "threads_per_core_limit": 2048,
    },
}

_DEVICE = flags.DEFINE_enum("device", "h100", list(GPUS), "GPU.")


def milliseconds_of(row: list, gpu: str) -> float:
    """Returns the lower bound of the time of a kernel. See `peers/gpu_compiler.py` for the row."""
    moved, _, _, _, flops, kind = row
    device, element = DEVICES[gpu.upper()], kind.rpartition(" ")[2]
    peak = (device.float32 if element == "f32" else device.bfloat16) * 1e12 * _PEAK_SHARES.get(element, 1.0)
    seconds = max(moved / GPUS[gpu]["memory_bandwidth"] / _BANDWIDTH_SHARE, flops / peak)
    return seconds * 1e3 + _MILLISECONDS_PER_KERNEL


def target_of(gpu: str) -> Target:
    """Returns the compiler for a GPU, a key of `GPUS`."""
    properties, peak = GPUS[gpu], DEVICES[gpu.upper()]
    fields = " ".join(f"{name}: {value}" for name, value in (_COMMON | properties).items())
    versions = "dnn_version_info { major: 9 minor: 7 } runtime_version { major: 12 minor: 8 }"
    return Target(
        platform="GPU",
        script="gpu_compiler.py",
        argument=f'gpu_device_info {{ {fields} }} platform_name: "CUDA" {versions} device_description_str: "{gpu}"',
        flag=f"--device={gpu}",
        packages=_PACKAGES,
        flops=(peak.float32 if DTYPE.value == "float32" else peak.bfloat16) * 1e12,
        gib=properties["device_memory_size"] / compiled_step.GIB,
        milliseconds=lambda row: milliseconds_of(row, gpu),
    )


def print_time(instructions: list, milliseconds: float) -> None:
    """Prints the lower bound of the time, and the kernels by type."""
    totals = collections.defaultdict(collections.Counter)
    for row in instructions:
        moved, times, _, _, flops, kind = row
        values = {"kernels": 1, "GB": moved / 1e9, "TFLOP": flops / 1e12, "ms": milliseconds_of(row, _DEVICE.value)}
        for name in (kind, "all"):
            totals[name].update({column: times * value for column, value in values.items()})
    print(f"lower bound of the step: {milliseconds:.1f} ms\n")
    order = sorted(totals, key=lambda name: -totals[name]["ms"])
    formats = {"kernels": ".0f", "GB": ".1f", "TFLOP": ".2f", "ms": ".1f"}
    rows = [{"type": kind} | {name: f"{totals[kind][name]:{form}}" for name, form in formats.items()} for kind in order]
    print(f"{reporting.table(rows)}\n")


def main(_) -> None:
    compiled_step.run(lambda: target_of(_DEVICE.value), print_time, _NOTE)


if __name__ == "__main__":
    app.run(main)
