# Keras has no types. These stubs make pyright count them as known; see .ci/public_types.py.
from typing import Any

from keras import layers as layers

def __getattr__(name: str) -> Any: ...
