"""Faster versions of the layers' functions for CPUs. They compute the same values.

TensorFlow runs one operation after another, so the plain functions and their gradients pass over the widest tensors a
dozen times. XLA compiles each function of this module into one pass over memory. The compiled functions are used in
graphs for one CPU that are traced for each shape anyway, such as training graphs. Sums that are slower with XLA use
TensorFlow's reductions or multiplications by vectors. The modules that import this one contain the plain versions. A
test compares both versions.

Axis letters: H the normalised axis, C classes, T keys.
"""

import functools
from collections.abc import Callable

import tensorflow as tf

from bert_tf.distribution import hardware
from bert_tf.model.fusion import column_sums_on_gpu

# These functions do not need AutoGraph, which makes tracing slower.
_one_pass = functools.partial(tf.function, autograph=False, jit_compile=True)

# A value, and its gradient as a function of the upstream gradient.
ValueAndGradient = tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]


def apply_to(x: tf.Tensor) -> bool:
    """Returns whether the compiled functions of this module are used for x."""
    return tf.inside_function() and x.shape.is_fully_defined() and hardware.compiles_parts()


def in_one_pass(function: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Returns a function that is compiled if this is faster for its first argument (see `apply_to`).

    Use it inside gradients.
    """
    compiled = _one_pass(function)

    @functools.wraps(function)
    def called(x: tf.Tensor, *arguments: object) -> tf.Tensor:
        return (compiled if apply_to(x) else function)(x, *arguments)

    return called


def with_gradient_in_one_pass(function: Callable[[tf.Tensor], ValueAndGradient]) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a function whose value and gradient are compiled if this is faster (see `apply_to`).

    The compiled gradient recomputes the value instead of keeping intermediate results.

    Args:
      function: returns its value and its gradient.
    """
    value = _one_pass(lambda x: function(x)[0])
    gradient = _one_pass(lambda x, upstream: function(x)[1](upstream))

    @tf.custom_gradient
    def differentiable(x: tf.Tensor) -> ValueAndGradient:
        if apply_to(x):
            return value(x), lambda upstream: gradient(x, upstream)
        if hardware.compiles_for_gpu():
            # If XLA compiles only the blocks, the intermediate results of a block would be written to memory.
            return function(x)[0], lambda upstream: function(x)[1](upstream)
        return function(x)

    @functools.wraps(function)
    def called(x: tf.Tensor) -> tf.Tensor:
        return differentiable(tf.convert_to_tensor(x))

    return called


# --- Matrix multiplications -------------------------------------------------------------------------------------------


def matmul(a: tf.Tensor, b: tf.Tensor, transpose_b: bool = False) -> tf.Tensor:
    """Multiplies two tensors of the compute dtype, in that dtype.

    CPUs without bfloat16 instructions emulate them, which takes more than twice as long as float32. On such a CPU, this
    function multiplies the bfloat16 numbers in float32 and rounds the product. The result is the same.
    """
    if a.dtype == tf.bfloat16 and hardware.emulates_bfloat16():
        product = tf.matmul(tf.cast(a, tf.float32), tf.cast(b, tf.float32), transpose_b=transpose_b)
        return tf.cast(product, tf.bfloat16)
    return tf.matmul(a, b, transpose_b=transpose_b)


def column_sums(rows: tf.Tensor) -> tf.Tensor:
    """Returns the column sums [H] of [n, H] as a matrix multiplication, because bfloat16 sums are slow (one thread)."""
    return tf.matmul(tf.ones([1, tf.shape(rows)[0]], rows.dtype), rows)[0]


def add_bias(x: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """Adds bias [H] to x [..., H]. On CPUs, the bias gradient is computed by `column_sums`, which is faster."""
    has_own_gradient = hardware.has_only_cpus() or hardware.compiles_for_gpu()
    return _add_bias(x, bias) if has_own_gradient else tf.nn.bias_add(x, bias)


@tf.custom_gradient
def _add_bias(x: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        rows = tf.reshape(upstream, [-1, bias.shape[0]])
        sums = column_sums_on_gpu(rows) if hardware.compiles_for_gpu() else column_sums(rows)
        return upstream, tf.cast(sums, bias.dtype)

    return tf.nn.bias_add(x, bias), gradient


# --- Layer normalisation ----------------------------------------------------------------------------------------------


def layer_norm(
    x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float, residual: tf.Tensor | None
) -> tf.Tensor:
    """See `normalization.layer_norm`."""
    width = x.shape[-1]

    @tf.custom_gradient
    def normalized(
        gamma: tf.Tensor, beta: tf.Tensor, x: tf.Tensor, residual: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, Callable]:
        y, mean, inverse = _layer_norm(x, residual, gamma, beta, epsilon)

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
            upstream = tf.cast(upstream, tf.float32)
            weighted = _times_standardized(upstream, x, residual, mean, inverse)
            mean_weights = gamma[:, tf.newaxis] / width
            means = tf.matmul(upstream, mean_weights), tf.matmul(weighted, mean_weights)
            of_branch = _layer_norm_gradient(upstream, x, residual, mean, inverse, gamma, *means)
            of_branches = [of_branch] if residual is None else [of_branch, of_branch]
            return column_sums(weighted), column_sums(upstream), *of_branches

        return y, gradient

    branches = [tf.reshape(branch, [-1, width]) for branch in (x, residual) if branch is not None]
    return tf.reshape(normalized(tf.convert_to_tensor(gamma), tf.convert_to_tensor(beta), *branches), x.shape)


def total_in_float32(x: tf.Tensor, addend: tf.Tensor | None = None) -> tf.Tensor:
    """Returns x in float32, plus the addend, if there is one. The addend is broadcast to the shape of x."""
    x = tf.cast(x, tf.float32)
    return x if addend is None else x + tf.cast(addend, tf.float32)


_total_in_one_pass = _one_pass(total_in_float32)


@_one_pass
def _layer_norm(x, residual, gamma, beta, epsilon):  # noqa: ANN001
    total = total_in_float32(x, residual)
    width = x.shape[-1]
    ones = tf.ones([width, 1])
    # Divide after the multiplication, so the mean of a row of equal numbers is exactly that number.
    mean = tf.matmul(total, ones) / width
    centered = total - mean
    inverse = tf.math.rsqrt(tf.matmul(tf.square(centered), ones) / width + epsilon)
    return tf.cast(centered * inverse * gamma + beta, x.dtype), mean, inverse


@_one_pass
def _times_standardized(upstream, x, residual, mean, inverse):  # noqa: ANN001
    return upstream * ((total_in_float32(x, residual) - mean) * inverse)


@_one_pass
def _layer_norm_gradient(upstream, x, residual, mean, inverse, gamma, upstream_mean, weighted_mean):  # noqa: ANN001
    standardized = (total_in_float32(x, residual) - mean) * inverse
    return tf.cast(inverse * (upstream * gamma - upstream_mean - standardized * weighted_mean), x.dtype)


# --- Softmax ----------------------------------------------------------------------------------------------------------


def softmax(scores: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """See `normalization.softmax`."""

    @tf.custom_gradient
    def normalized(scores: tf.Tensor) -> ValueAndGradient:
        probabilities = tf.nn.softmax(_total_in_one_pass(scores, bias))
        return probabilities, lambda upstream: _softmax_gradient(upstream, probabilities, scores.dtype)

    return normalized(scores)


@_one_pass
def _softmax_gradient(upstream, probabilities, dtype):  # noqa: ANN001
    weighted = upstream * probabilities
    total = tf.reduce_sum(weighted, axis=-1, keepdims=True)
    return tf.cast(weighted - probabilities * total, dtype)


def log_likelihood_loss(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """See `heads.log_likelihood_loss`. TensorFlow's operation takes a dozen passes, including the gradient."""

    @tf.custom_gradient
    def loss(logits: tf.Tensor) -> ValueAndGradient:
        total = tf.reduce_logsumexp(logits, axis=-1)
        label_logits = tf.gather(logits, labels, axis=-1, batch_dims=labels.shape.rank)
        return total - label_logits, lambda upstream: _log_likelihood_gradient(upstream, logits, labels, total)

    return loss(logits)


@_one_pass
def _log_likelihood_gradient(upstream, logits, labels, total):  # noqa: ANN001
    is_label = tf.range(logits.shape[-1], dtype=labels.dtype) == labels[..., tf.newaxis]
    return (tf.exp(logits - total[..., tf.newaxis]) - tf.cast(is_label, tf.float32)) * upstream[..., tf.newaxis]
