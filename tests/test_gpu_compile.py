"""Tests the messages and the numbers of benchmarks.gpu_compile. XLA's compiler for GPUs is not needed."""

import json
import os

import pytest

from benchmarks import gpu_compile
from tests import programs

FUSION = [3.35232e9, 1, "encoder/layer_0/add", "bf16[8,4]{1,0}", 0, "fusion"]
PRODUCT = [0, 2, "encoder/layer_0/MatMul", "bf16[8,4]{1,0}", 989e9, "matrix multiplication, bf16"]


@pytest.mark.parametrize(("row", "expected"), [(FUSION, 1 / 0.85 + 0.002), (PRODUCT, 1 / 0.7 + 0.002)])
def test_a_kernel_waits_for_its_bytes_or_for_its_operations(row, expected):
    assert gpu_compile.milliseconds_of(row, "h100") == pytest.approx(expected)


def test_without_the_compiler_the_program_prints_how_to_install_it():
    output = programs.run("-m", "benchmarks.gpu_compile", "--python=/nowhere/python", expect=2)
    assert "--python=/nowhere/python" in output and "pip install 'jax[cuda12]==" in output
    assert "Traceback" not in output


def test_it_prints_the_bound_and_the_memory_and_writes_the_program(write, tmp_path):
    memory = {"arguments": 2**30, "results": 0, "temporaries": 2**37, "code": 0}
    report = json.dumps(memory | {"instructions": [FUSION, PRODUCT]})
    python = write("python", f"""#!/bin/sh\necho '{{"ready": true}}'\nread request\necho '{report}'\n""")
    os.chmod(python, 0o755)
    flags = [f"--python={python}", f"--dump={tmp_path}/step.mlirbc", "--size=tiny", "--length=16", "--batch=2"]
    output = " ".join(programs.run("-m", "benchmarks.gpu_compile", *flags, expect=1).split())
    for name in ("gradients", "update"):
        assert (tmp_path / f"step.{name}.mlirbc").read_bytes().startswith(b"ML\xefR")
    assert "lower bound of the step: 8.1 ms" in output and "does not fit: 49.9" in output
    assert "matrix multiplication, bf16 4 0.0 3.96 5.7" in output and "encoder/layer_*/add" in output
