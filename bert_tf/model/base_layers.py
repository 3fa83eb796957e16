"""The base class of all layers, and the layers that the other layers consist of: `Dense` and `LayerNorm`."""

import contextlib
import operator
import random
from collections.abc import Callable, Iterator
from typing import Any, Self, TypeVar

import keras
import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.distribution import hardware, tensorflow_internals
from bert_tf.model.activations import ACTIVATIONS
from bert_tf.model.cpu_kernels import add_bias, matmul
from bert_tf.model.fusion import product_on_gpu
from bert_tf.model.normalization import layer_norm

Layer = TypeVar("Layer")

serializable: Callable[[type[Layer]], type[Layer]] = keras.saving.register_keras_serializable(package="bert_tf")


def truncated_normal(config: BertConfig) -> keras.initializers.Initializer:
    """Returns the original initializer of kernels and embeddings."""
    return keras.initializers.TruncatedNormal(stddev=config.initializer_range)


@contextlib.contextmanager
def initial_values_from(seed: int) -> Iterator[None]:
    """Context manager: layers created inside it get initial values that depend only on the seed.

    Keras seeds its initializers from Python's global `random` state. The state is restored at the end, so the random
    numbers of the caller do not change.
    """
    state = random.getstate()
    random.seed(operator.index(seed))  # also accepts NumPy integers
    try:
        yield
    finally:
        random.setstate(state)


@contextlib.contextmanager
def variable_scope(path: str) -> Iterator[None]:
    """Context manager: the paths of variables created inside it begin with `path` instead of the layer's name."""
    with contextlib.ExitStack() as scopes:
        for name in filter(None, path.split("/")):
            scopes.enter_context(keras.name_scope(name))
        yield


class BertLayer(keras.layers.Layer):
    """Base class of all layers, with the config, explicit control of precision, and serialization.

    Args:
      config: sizes, activation, dropout, initializer.
      kwargs: Keras arguments: `name`, `dtype` (a dtype or a policy) and `trainable`.
    """

    # The arguments of the constructor except `config` and Keras's arguments. Each is an attribute of the same name.
    saved_arguments: tuple[str, ...] = ()

    def __init__(self, config: BertConfig, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)
        self.config = config
        self.supports_masking = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the layer."""
        if not tf.executing_eagerly():
            tensorflow_internals.release_gradients_with_graphs()
        return super().__call__(*args, **kwargs)

    @property
    def shared(self) -> dict[str, Any]:
        """The options that a layer passes to its sublayers."""
        return {"dtype": self.dtype_policy, "trainable": self.trainable}

    def add_weight(self, **kwargs: Any) -> keras.Variable:
        """Adds a float32 variable. Keras does not cast its value when a layer reads it (see `compute`)."""
        return super().add_weight(**{**kwargs, "dtype": "float32", "autocast": False})

    def compute(self, x: keras.Variable | tf.Tensor) -> tf.Tensor:
        """Returns a variable's value, or a tensor, in the compute dtype."""
        return tf.cast(x.value if isinstance(x, keras.Variable) else x, self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor, as JSON values."""
        arguments = {name: getattr(self, name) for name in self.saved_arguments}
        return {**keras.layers.Layer.get_config(self), "config": self.config.to_dict(), **arguments}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Builds the layer from the result of `get_config`."""
        return cls(**{**config, "config": BertConfig.from_dict(config["config"])})


@serializable
class Dense(BertLayer, keras.layers.Dense):
    """Computes x kernel + bias, then the activation. Variables: kernel, bias.

    `enable_lora` freezes the kernel and adds the product of two trained matrices (Hu et al., 2021). The kernel of a
    saved layer is the sum.

    Args:
      units: width of the output.
      activation: a name of `ACTIVATIONS`.
    """

    saved_arguments = ("units", "activation")

    def __init__(self, config: BertConfig, units: int, activation: str = "linear", **kwargs: Any) -> None:
        super().__init__(config, units=units, kernel_initializer="zeros", **kwargs)
        self.activation = activation

    def build(self, input_shape: tuple) -> None:
        """Creates the variables for inputs of shape [..., in]."""
        self.kernel_initializer = truncated_normal(self.config)  # not in the constructor, because it draws a seed
        super().build(input_shape)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Returns [..., units] for x [..., in]."""
        if hardware.compiles_for_gpu() and len(x.shape) == 2:
            product = product_on_gpu(self.compute(x), tf.convert_to_tensor(self.kernel))
        else:
            product = matmul(self.compute(x), self.compute(self.kernel))
        return ACTIVATIONS[self.activation](add_bias(product, self.compute(self.bias)))

    def merge_lora(self) -> None:
        """Adds the LoRA adapter to the kernel and removes the adapter. Without an adapter, does nothing."""
        if self.lora_enabled:
            self._kernel.assign(self.kernel)
            self.lora_kernel_b.assign(tf.zeros_like(self.lora_kernel_b))  # compiled functions still add the product
            for matrix in (self.lora_kernel_a, self.lora_kernel_b):
                self._untrack_variable(matrix)
            self.lora_enabled, self.lora_rank = False, None


@serializable
class LayerNorm(BertLayer):
    """Layer normalisation over the last axis. Variables: beta, gamma."""

    def __init__(self, config: BertConfig, name: str = "LayerNorm", **kwargs: Any) -> None:
        super().__init__(config, name=name, **kwargs)

    def build(self, input_shape: tuple) -> None:
        """Creates the variables for inputs of shape [..., H]."""
        self.beta = self.add_weight(name="beta", shape=(input_shape[-1],), initializer="zeros")
        self.gamma = self.add_weight(name="gamma", shape=(input_shape[-1],), initializer="ones")

    def call(self, x: tf.Tensor, residual: tf.Tensor | None = None) -> tf.Tensor:
        """Normalises x [..., H] (plus a residual of the same shape). Returns [..., H] in the compute dtype."""
        y = layer_norm(x, self.gamma.value, self.beta.value, self.config.layer_norm_eps, residual)
        return tf.cast(y, self.compute_dtype)
