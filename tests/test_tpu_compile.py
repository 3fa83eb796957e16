"""Tests the messages and exit codes of benchmarks.tpu_compile. The TPU's compiler is not needed."""

import json
import os

import pytest

from benchmarks import compiled_step, tpu_compile
from tests import programs
from tests.conftest import assert_refused

V5E = tpu_compile.target_of("v5e:2x2")


@pytest.mark.parametrize(
    ("flags", "answer", "place", "word"),
    [
        (["--python=/nowhere/python"], None, "--python=/nowhere/python", "pip install jax=="),
        ([], {"missing": "No module named 'jax'"}, "--python", "pip install jax=="),
        (["--topology=v9:2x2"], {"ready": True}, "--topology=v9:2x2", "v6e"),
        (["--topology=v5e:9x9"], {"unknown": "not divisible"}, "--topology=v5e:9x9", "not divisible"),
        ([], None, "tpu_compiler.py", "status 3"),
    ],
)
def test_errors_end_it_with_status_2(write, flags, answer, place, word):
    # An interpreter that prints the first answer of the compiler's script.
    script = f"echo '{json.dumps(answer)}'" if answer else "exit 3"
    python = write("python", f"#!/bin/sh\n{script}\n")
    os.chmod(python, 0o755)
    output = programs.run("-m", "benchmarks.tpu_compile", f"--python={python}", *flags, expect=2)
    assert place in output and word in output
    assert "Traceback" not in output


SIZES = {"arguments": 2**31, "results": 0, "code": 0}
HLO = "Ran out of memory on HBM, the total memory required for HLO temporaries (16.64G) exceeds available HBM (15.75G)."
HBM = "Ran out of memory in memory space hbm. Used 16.25G of 15.75G hbm."


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (SIZES | {"temporaries": 2**32, "code": 2**29}, (True, "6.50 GiB", "fits")),
        (SIZES | {"temporaries": 2**34}, (False, "18.00 GiB", "2.25 GiB too much")),
        ({"error": HLO, "arguments": 2**32}, (False, "20.64 GiB", "4.89 GiB too much")),
        ({"error": HBM, "arguments": 2**32}, (False, "16.25 GiB", "0.50 GiB too much")),
    ],
    ids=["fits", "too large", "HLO temporaries", "HBM"],
)
def test_it_prints_whether_the_step_fits(report, expected, capsys):
    fits, peak, verdict = expected
    assert compiled_step.print_memory(report, V5E) == fits
    printed = capsys.readouterr().out
    assert peak in printed and verdict in printed and "limit: 15.75 GiB" in printed


def test_other_errors_of_the_compiler_are_shown():
    report = {"error": "unknown custom call", "arguments": 0}
    assert_refused("unknown custom call", compiled_step.print_memory, report, V5E)


def test_equal_operations_of_all_layers_are_one_row(capsys):
    sources = {"encoder/layer_0/MatMul": "layers.py:1", "encoder/layer_1/MatMul": "layers.py:1", "Sum": "loop.py:2"}
    rows = [[1.0, 1, f"encoder/layer_{i}/MatMul", "bf16[8,4]{1,0}"] for i in range(2)]
    rows += [[1.0, 4, "gradient_tape/encoder/layer_0/MatMul/MatMul_1", "bf16[4,4]"], [1e-5, 1, "Sum", "f32[]"]]
    compiled_step.print_operations(rows, sources, 6.0)
    rows = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()[2:]]
    assert rows == [
        "4.00 66.7% 4 gradient_tape/encoder/layer_*/MatMul/MatMul_1 bf16[4,4] gradient of layers.py:1",
        "2.00 33.3% 2 encoder/layer_*/MatMul bf16[8,4] layers.py:1",
        "0.00 0.0% 1 Sum f32[] loop.py:2",
    ]
