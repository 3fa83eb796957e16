"""Compiles a program for a TPU with libtpu, without a TPU; `benchmarks.tpu_compile` starts this script.

    python benchmarks/peers/tpu_compiler.py TOPOLOGY

The script runs in an environment with jax, jaxlib and libtpu. It writes a line of JSON after it has loaded the
topology. Then it reads a line of JSON, which contains:

- the path of a StableHLO file
- the mean number of iterations of a loop whose number depends on the data
- the fraction of the executions of a conditional that take the branch with the highest cost

It writes a second line, which contains the compiler's error, or the memory in bytes and the instructions that have an
estimate. An instruction is a list [cycles, executions, operation name, shape].
"""

import json
import os
import re
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


def answer(**values):
    """Writes a line of JSON for the other process."""
    print(json.dumps(values), flush=True)


try:
    import libtpu  # noqa: F401
    import numpy as np
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jax._src.lib.mlir import ir
    from jax._src.lib.mlir.dialects import hlo
    from jax.experimental import topologies
except ImportError as error:
    answer(missing=str(error))
    sys.exit()

# Contains only the element types of arguments, results and variables.
_ELEMENT_BYTES = {"i1": 1, "i32": 4, "ui32": 4, "f32": 4, "i64": 8, "ui64": 8, "bf16": 2}


def operations(block_owner):
    """Yields an operation's nested operations, innermost first."""
    for region in block_owner.regions:
        for block in region:
            for operation in list(block):
                yield from operations(operation.operation)
                yield operation.operation


def adapt(module):
    """Replaces the Philox generator by the device's random number generator, as TensorFlow does for TPUs.

    The device's generator gets the key of the Philox generator, and no counter.
    """
    for operation in operations(module.operation):
        if operation.name == "mhlo.copy":  # not supported by the compiler
            operation.results[0].replace_all_uses_with(operation.operands[0])
            operation.erase()
        elif operation.name == "stablehlo.rng_bit_generator":
            state, bits = operation.results
            with ir.InsertionPoint(operation), operation.location:
                start, end, stride = (mlir.dense_int_array([number]) for number in (0, 2, 1))
                key = hlo.slice(operation.operands[0], start, end, stride)
                algorithm = hlo.RngAlgorithmAttr.get("DEFAULT")
                drawn = hlo.RngBitGeneratorOp(key.type, bits.type, algorithm, key)
            bits.replace_all_uses_with(drawn.results[1])
            state.replace_all_uses_with(operation.operands[0])
            operation.erase()


def argument_bytes(module):
    """Returns the size of the program's arguments in bytes, including the variables, which are updated in place."""
    main = next(operation for operation in module.body if operation.name.value == "main")
    total = 0
    for kind in main.type.inputs:
        shape = ir.RankedTensorType(kind)
        total += int(np.prod(shape.shape)) * _ELEMENT_BYTES[str(shape.element_type)]
    return total


def parse(text):
    """Returns the instructions of each computation as (opcode, shape, line), and the name of the main computation."""
    computations, main, current = {}, None, None
    for line in text.splitlines():
        head = re.match(r"(ENTRY )?%?([\w.-]+) .*\{\s*$", line)
        if head and not line.startswith(" "):
            current = computations.setdefault(head.group(2), [])
            main = head.group(2) if head.group(1) else main
        elif line.startswith("}"):
            current = None
        elif current is not None:
            found = re.match(r"\s+(?:ROOT )?%?[\w.-]+ = (\(.*?\)(?= [a-z])|\S+) ([a-z][a-z0-9-]*)\(", line)
            if found:
                current.append((found.group(2), found.group(1), line))
    return computations, main


def value(pattern, line, default=""):
    """Returns the first group of a pattern in a line, or the default."""
    found = re.search(pattern, line)
    return found.group(1) if found else default


def known_trips(computations, line):
    """Returns the number of iterations of a loop; None if it depends on the data.

    If the compiler does not report the number, it is the constant with which the loop's condition compares the counter.
    """
    condition = computations.get(value(r"condition=%?([\w.-]+)", line), [])
    limits = [value(r" constant\((\d+)\)", x) for opcode, _, x in condition if opcode == "constant"]
    known = value(r'known_trip_count":?\{"n":"(\d+)"', line) or (limits[0] if len(limits) == 1 else "")
    return float(known) if known else None


def instructions(computations, name, unknown_trips, share, times=1):
    """Yields (cycles, times, name, shape) of the executed instructions.

    `unknown_trips` is the mean number of iterations of loops whose number depends on the data. `share` is the fraction
    of the executions of a conditional that take the branch with the highest cost. The others take the cheapest branch.
    """
    for opcode, shape, line in computations.get(name, []):
        if opcode == "while":
            trips = known_trips(computations, line)
            trips = unknown_trips if trips is None else trips
            body = value(r"body=%?([\w.-]+)", line)
            yield from instructions(computations, body, unknown_trips, share, times * trips)
        elif opcode == "call":
            called = value(r"to_apply=%?([\w.-]+)", line)
            yield from instructions(computations, called, unknown_trips, share, times)
        elif opcode == "conditional":
            names = re.findall(r"(?:true|false)_computation=%?([\w.-]+)", line)
            names = names or value(r"branch_computations=\{([^}]*)\}", line).replace("%", "").split(", ")
            branches = [list(instructions(computations, branch, unknown_trips, share, times)) for branch in names]
            branches.sort(key=lambda branch: sum(row[0] * row[1] for row in branch))
            for branch, part in ((branches[-1], share), (branches[0], 1 - share)):
                yield from ((cycles, times * part, *rest) for cycles, times, *rest in branch if part)
        else:
            cycles = int(value(r'"estimated_cycles":"?(\d+)', line, "0"))
            if cycles:
                yield cycles, times, operation_name(computations, line), shape


def operation_name(computations, line):
    """Returns the name of an instruction's operation. In a fusion, a matrix multiplication has priority."""
    inner = computations.get(value(r"calls=%?([\w.-]+)", line), [])
    products = [x for opcode, _, x in inner if opcode in ("convolution", "dot")]
    names = [value(r'op_name="([^"]*)"', x) for x in (*products, line, *(x for _, _, x in inner))]
    return next(filter(None, names), "")


def report(path, unknown_trips, share, topology):
    """Compiles the program in a file. See `instructions` for `unknown_trips` and `share`."""
    context = mlir.make_ir_context()
    device = topology.devices[0]
    options = compiler.get_compile_options(
        num_replicas=1, num_partitions=1, device_assignment=np.array([[device.id]]), backend=device.client
    )
    with context, ir.Location.unknown(), open(path, "rb") as reader:
        module = ir.Module.parse(reader.read(), context=context)
        adapt(module)
        devices = xla_client.DeviceList((device,))
        try:
            program = device.client.compile(module, executable_devices=devices, compile_options=options)
        except Exception as error:  # jaxlib does not export the type
            return {"error": str(error), "arguments": argument_bytes(module)}
    memory = program.get_compiled_memory_stats()
    computations, main = parse(program.hlo_modules()[0].to_string())
    return {
        "arguments": memory.argument_size_in_bytes,
        "results": memory.output_size_in_bytes - memory.alias_size_in_bytes,
        "temporaries": memory.temp_size_in_bytes,
        "code": memory.generated_code_size_in_bytes,
        "instructions": list(instructions(computations, main, unknown_trips, share)),
    }


def main():
    """Loads the topology and compiles the requested program; see the top of this file."""
    try:
        topology = topologies.get_topology_desc(platform="tpu", topology_name=sys.argv[1])
    except Exception as error:  # jaxlib does not export the type
        answer(unknown=str(error))
        return
    answer(ready=True)
    line = sys.stdin.readline()
    if line:
        answer(**report(*json.loads(line), topology))


main()
