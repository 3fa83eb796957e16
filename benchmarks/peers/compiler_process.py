"""Shared by `tpu_compiler.py` and `gpu_compiler.py`: compiles a program of TensorFlow for a device that is not present.

The scripts run in an environment with jax and the compiler. A script writes a line of JSON after it has loaded the
device. Then it reads a line of JSON, which contains:

- the path of a StableHLO file
- the mean number of iterations of a loop whose number depends on the data
- the fraction of the executions of a conditional that take the branch with the highest cost

It writes a second line, which contains the compiler's error, or the memory in bytes and the instructions that have a
cost. An instruction is a list [cost, executions, operation name, shape, ...].
"""

import json
import re
import sys


def answer(**values):
    """Writes a line of JSON for the other process."""
    print(json.dumps(values), flush=True)


try:
    import numpy as np
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jax._src.lib.mlir import ir
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


def remove_copies(module):
    """Removes the operation `mhlo.copy`, which the compilers do not support."""
    for operation in operations(module.operation):
        if operation.name == "mhlo.copy":
            operation.results[0].replace_all_uses_with(operation.operands[0])
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


def instructions(computations, name, unknown_trips, share, cost_of, times=1):
    """Yields [cost, times, name, shape, ...] of the executed instructions.

    Args:
      computations: see `parse`.
      name: the executed computation.
      unknown_trips: the mean number of iterations of loops whose number depends on the data.
      share: the fraction of the executions of a conditional that take the branch with the highest cost. The others
        take the cheapest branch.
      cost_of: returns the cost of an instruction (opcode, shape, line), and other numbers in a list; None to
        leave out the instruction.
      times: the number of executions of the computation.
    """
    for opcode, shape, line in computations.get(name, []):
        if opcode == "while":
            trips = known_trips(computations, line)
            trips = unknown_trips if trips is None else trips
            body = value(r"body=%?([\w.-]+)", line)
            yield from instructions(computations, body, unknown_trips, share, cost_of, times * trips)
        elif opcode == "call":
            called = value(r"to_apply=%?([\w.-]+)", line)
            yield from instructions(computations, called, unknown_trips, share, cost_of, times)
        elif opcode == "conditional":
            names = re.findall(r"(?:true|false)_computation=%?([\w.-]+)", line)
            names = names or value(r"branch_computations=\{([^}]*)\}", line).replace("%", "").split(", ")
            branches = [
                list(instructions(computations, branch, unknown_trips, share, cost_of, times)) for branch in names
            ]
            branches.sort(key=lambda branch: sum(row[0] * row[1] for row in branch))
            for branch, part in ((branches[-1], share), (branches[0], 1 - share)):
                yield from ([cost, times * part, *rest] for cost, times, *rest in branch if part)
        elif costs := cost_of(opcode, shape, line):
            yield [costs[0], times, operation_name(computations, line), shape, *costs[1:]]


def operation_name(computations, line):
    """Returns the name of an instruction's operation. In a fusion, a matrix multiplication has priority."""
    inner = computations.get(value(r"calls=%?([\w.-]+)", line), [])
    products = [x for opcode, _, x in inner if opcode in ("convolution", "dot")]
    names = [value(r'op_name="([^"]*)"', x) for x in (*products, line, *(x for _, _, x in inner))]
    return next(filter(None, names), "")


def report(path, unknown_trips, share, topology, adapt, cost_of):
    """Compiles the program in a file.

    Args:
      path: the file.
      unknown_trips: see `instructions`.
      share: see `instructions`.
      topology: the devices. The program is compiled for the first one.
      adapt: changes the module before it is compiled.
      cost_of: see `instructions`.
    """
    context = mlir.make_ir_context()
    device = topology.devices[0]
    options = compiler.get_compile_options(
        num_replicas=1, num_partitions=1, device_assignment=np.array([[device.id]]), backend=device.client
    )
    with context, ir.Location.unknown(), open(path, "rb") as reader:
        module = ir.Module.parse(reader.read(), context=context)
        remove_copies(module)
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
        "instructions": list(instructions(computations, main, unknown_trips, share, cost_of)),
    }


def run(adapt, cost_of, **device):
    """Loads a device, and compiles the requested program; see the top of this file.

    Args:
      adapt: see `report`.
      cost_of: see `instructions`.
      **device: arguments of `topologies.get_topology_desc`.
    """
    try:
        topology = topologies.get_topology_desc(**device)
    except Exception as error:  # jaxlib does not export the type
        answer(unknown=str(error))
        return
    answer(ready=True)
    line = sys.stdin.readline()
    if line:
        answer(**report(*json.loads(line), topology, adapt, cost_of))
