"""Makes `tpu_operations.txt`, the list of operations that a TPU can compile, with the TPU build of TensorFlow.

It first traces all programs of `test_tpu` for a simulated TPU, and lowers each graph with the TPU's compiler bridge.
No TPU is needed. The script takes about 5 minutes.
"""

import contextlib
import pathlib
import tempfile
import textwrap

from tests.training import test_tpu

# isort: split
import tensorflow as tf
from tensorflow.python import pywrap_mlir
from tensorflow.python.framework import kernels

_BRIDGE = "tf-replicated-clustering-bridge-v2"
_ENVIRONMENT = """The TPU build of TensorFlow is needed. To install it (1 GB) next to the other packages:

    pip install --target=build/tensorflow-tpu --no-deps tensorflow-tpu==2.20.0
    export PYTHONPATH=build/tensorflow-tpu TPU_LOAD_LIBRARY=0
    python -m tests.training.tpu_operations
"""


def supported() -> list[str]:
    """Returns the operations for which this build of TensorFlow has TPU kernels, in alphabetical order."""
    # The first compilation registers the kernels, even if it fails because this build can't compile for the CPU.
    with contextlib.suppress(tf.errors.NotFoundError):
        tf.function(lambda: tf.constant(1) + 1, jit_compile=True)()
    return sorted(
        {kernel.op for kernel in kernels.get_all_registered_kernels().kernel if "TPU_JIT" in kernel.device_type}
    )


def main() -> None:
    """Lowers all graphs and writes the list."""
    names = supported()
    if not names:
        raise SystemExit(_ENVIRONMENT)
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        test_tpu.write_files(directory)
        for number, program in enumerate(test_tpu.PROGRAMS):
            test_tpu.trace(directory, program, directory / f"run{number}", "--export")
            for path in sorted(directory.glob(f"run{number}-*.mlir")):
                lowered = pywrap_mlir.experimental_run_pass_pipeline(path.read_text(), _BRIDGE, False)
                assert "tf_device.cluster_func" in lowered and "TPUReplicateMetadata" not in lowered
                print(f"{program}: lowered {path.name}")
    test_tpu.OPERATIONS.write_text(textwrap.fill(" ".join(names), 120) + "\n")


if __name__ == "__main__":
    main()
