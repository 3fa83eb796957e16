"""Compiles a program for a TPU with libtpu, without a TPU; `benchmarks.tpu_compile` starts this script.

    python benchmarks/peers/tpu_compiler.py TOPOLOGY

The script runs in an environment with jax, jaxlib and libtpu; see `compiler_process.py`. The cost of an instruction is
the compiler's estimate in cycles.
"""

import os
import sys

os.environ |= {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # several processes can compile at the same time, because no device is used
    "JAX_PLATFORMS": "cpu",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_LOAD_LIBRARY": "1",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_SKIP_MDS_QUERY": "1",  # otherwise libtpu waits for the metadata server of Google Cloud
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_WORKER_HOSTNAMES": "localhost",
}

import compiler_process

try:
    import libtpu  # noqa: F401
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir
    from jax._src.lib.mlir.dialects import hlo
except ImportError as error:
    compiler_process.answer(missing=str(error))
    sys.exit()


def use_device_generator(module):
    """Replaces the Philox generator by the device's random number generator, as TensorFlow does for TPUs.

    The device's generator gets the key of the Philox generator, and no counter.
    """
    for operation in compiler_process.operations(module.operation):
        if operation.name == "stablehlo.rng_bit_generator":
            state, bits = operation.results
            with ir.InsertionPoint(operation), operation.location:
                start, end, stride = (mlir.dense_int_array([number]) for number in (0, 2, 1))
                key = hlo.slice(operation.operands[0], start, end, stride)
                algorithm = hlo.RngAlgorithmAttr.get("DEFAULT")
                drawn = hlo.RngBitGeneratorOp(key.type, bits.type, algorithm, key)
            bits.replace_all_uses_with(drawn.results[1])
            state.replace_all_uses_with(operation.operands[0])
            operation.erase()


def cycles_of(_opcode, _shape, line):
    """Returns the estimated cycles of an instruction; None if there is no estimate."""
    cycles = int(compiler_process.value(r'"estimated_cycles":"?(\d+)', line, "0"))
    return [cycles] if cycles else None


compiler_process.run(use_device_generator, cycles_of, platform="tpu", topology_name=sys.argv[1])
