"""Compiles a program for a GPU with XLA, without a GPU; `benchmarks.gpu_compile` starts this script.

    python benchmarks/peers/gpu_compiler.py PROPERTIES

The script runs in an environment with jax and its CUDA plugin; see `compiler_process.py`. PROPERTIES is a
`GpuTargetConfigProto` as text. An instruction is a kernel. Its cost is the number of bytes that it reads and writes, if
it reads each operand once. Two values follow: the floating-point operations of a matrix multiplication, and the type of
the kernel.
"""

import json
import math
import os
import re
import sys

os.environ |= {
    "JAX_PLATFORMS": "cuda,cpu",
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",  # there is no driver
    "TF_CPP_MIN_LOG_LEVEL": "3",
    # Both choices need a device: XLA measures kernels to select one.
    "XLA_FLAGS": "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false",
}

import compiler_process

_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "u16": 2, "s16": 2}
_BYTES |= dict.fromkeys(("f32", "s32", "u32"), 4) | dict.fromkeys(("f64", "s64", "u64"), 8)
# Instructions that move no data, or that are part of another kernel.
_FREE = {"after-all", "bitcast", "constant", "get-tuple-element", "parameter", "partition-id", "replica-id", "tuple"}

shapes = {}  # the shapes of earlier instructions, by name


def arrays(shape):
    """Returns the element types and the dimensions of a shape, which can be a tuple."""
    found = re.findall(r"\b([a-z]+\d+|pred)\[([\d,]*)\]", shape)
    return [(element, [int(size) for size in sizes.split(",") if size]) for element, sizes in found]


def size(shape):
    """Returns the bytes of a shape."""
    return sum(_BYTES[element] * math.prod(sizes) for element, sizes in arrays(shape))


def cost_of(opcode, shape, line):
    """Returns the bytes, the floating-point operations and the type of a kernel; None for other instructions."""
    name, operands = re.match(rf"\s+(?:ROOT )?%?([\w.-]+) = .*? {opcode}\((.*?)\)(?:, |$)", line).groups()
    shapes[name] = shape
    if opcode in _FREE:
        return None
    operands = [shapes.get(operand.rpartition("%")[2], "") for operand in operands.split(", ")]
    is_product = 'custom_call_target="__cublas' in line
    results = arrays(shape)[: 1 if is_product else None]  # without the second result, a workspace
    moved = sum(_BYTES[element] * math.prod(sizes) for element, sizes in results) + sum(map(size, operands))
    if not is_product:
        return [moved, 0, opcode]
    config = json.loads(compiler_process.value(r"backend_config=(\{.*\})", line))["gemm_backend_config"]
    contracted = config["dot_dimension_numbers"]["lhs_contracting_dimensions"]
    ((element, sizes),) = arrays(operands[0])
    flops = 2 * math.prod(results[0][1]) * math.prod(sizes[int(number)] for number in contracted)
    return [moved, flops, f"matrix multiplication, {element}"]


topology = {"platform": "cuda", "topology_name": "", "topology": "1x1x1", "target_config": sys.argv[1]}
compiler_process.run(lambda module: None, cost_of, **topology)
