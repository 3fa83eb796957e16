"""Estimates of the memory of a training step, and the peak speed of devices.

docs/howto/memory.md explains the formula of the memory.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from bert_tf.config import BertConfig

GIB = 2**30


class Device(NamedTuple):
    """The memory and the peak speeds of a device, according to its manufacturer.

    Attributes:
      gib: memory in GiB. For a TPU, the part that its compiler can use.
      float32: peak of dense float32 matrix multiplications in TFLOP/s. For a TPU, the peak in its default precision.
      float16: peak in float16; 0 if the device has no such instructions.
      bfloat16: peak in bfloat16; 0 if the device has no such instructions.
    """

    gib: float
    float32: float
    float16: float
    bfloat16: float


# A device as TensorFlow counts it. For a TPU, a device is a core; for TPU v5p, it is a chip with two cores.
DEVICES: Mapping[str, Device] = {
    "TPU v2": Device(7.48, 22.5, 0.0, 22.5),
    "TPU v3": Device(15.48, 61.5, 0.0, 61.5),
    "TPU v4": Device(15.25, 137.5, 0.0, 137.5),
    "TPU v5e": Device(15.75, 197.0, 0.0, 197.0),
    "TPU v5p": Device(95.74, 459.0, 0.0, 459.0),
    "TPU v6e": Device(31.25, 918.0, 0.0, 918.0),
    "T4": Device(16.0, 8.1, 65.0, 0.0),
    "V100": Device(16.0, 15.7, 125.0, 0.0),
    "L4": Device(24.0, 30.3, 121.0, 121.0),
    "A100": Device(40.0, 19.5, 312.0, 312.0),
    "H100": Device(80.0, 67.0, 989.0, 989.0),
    "H200": Device(141.0, 67.0, 989.0, 989.0),
    "B200": Device(180.0, 75.0, 2250.0, 2250.0),
}


def peak_tflops(name: str, dtype: str) -> float:
    """Returns the peak speed of a device in TFLOP/s; 0 for an unknown device.

    Args:
      name: the device's name, such as "NVIDIA H100 80GB HBM3".
      dtype: "float32", "float16" or "bfloat16".
    """
    words = re.split(r"[ -]", name)
    return next((getattr(device, dtype) for known, device in DEVICES.items() if known in words), 0.0)


def memory_gib(
    config: BertConfig,
    parameters: int,
    trained: int,
    rows: float,
    length: float,
    dtype: str = "float32",
    recomputes: bool = False,
    keeps_scores: bool = True,
) -> float:
    """Returns the memory of a training step on one device, in GiB: weights, moments, gradients and activations.

    Args:
      config: the config of the encoder.
      parameters: the number of weights of the model.
      trained: the number of trained weights.
      rows: the number of rows of a micro-batch.
      length: the number of tokens in a row.
      dtype: the dtype of matrix multiplications.
      recomputes: whether the backward pass recomputes each block.
      keeps_scores: whether attention scores are kept. Long rows on a TPU do not keep them; see `row_attention`.
    """
    scores = 2 * config.num_attention_heads * length if keeps_scores else 0
    of_block, layers = 10 * config.hidden_size + 2 * config.intermediate_size + scores, config.num_hidden_layers
    of_position = layers * config.hidden_size + of_block if recomputes else layers * of_block
    activations = rows * length * of_position * (4 if dtype == "float32" else 2)
    return (4 * parameters + 12 * trained + activations) / GIB
