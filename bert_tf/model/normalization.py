"""Layer normalisation and softmax. Both compute in float32, for inputs of any precision."""

from collections.abc import Callable

import tensorflow as tf

from bert_tf.distribution import hardware
from bert_tf.model import cpu_kernels
from bert_tf.model.fusion import column_sums_on_gpu, computed_first


def layer_norm(
    x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float, residual: tf.Tensor | None = None
) -> tf.Tensor:
    """Normalises x, or x plus a residual branch, over the last axis.

    Args:
      x: [..., H].
      gamma: [H] scale, float32.
      beta: [H] offset, float32.
      epsilon: added to the variance.
      residual: added to x; has the shape and dtype of x.

    Returns:
      [..., H], with the dtype of x.
    """
    if cpu_kernels.apply_to(x):
        return cpu_kernels.layer_norm(x, gamma, beta, epsilon, residual)

    # TensorFlow's gradient takes twice as many passes over memory.
    @tf.custom_gradient
    def normalized(
        gamma: tf.Tensor, beta: tf.Tensor, x: tf.Tensor, residual: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, Callable]:
        if hardware.compiles_for_gpu():
            total, mean, variance = _moments_on_gpu(x, residual)
        else:
            total = cpu_kernels.total_in_float32(x, residual)
            mean, variance = tf.nn.moments(total, axes=[-1], keepdims=True)
        inverse = tf.math.rsqrt(variance + epsilon)
        standardized = (total - mean) * inverse

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
            upstream = tf.cast(upstream, tf.float32)
            scaled = upstream * gamma
            upstream_mean, weighted_mean = _row_mean(scaled), _row_mean(scaled * standardized)
            of_branch = tf.cast(inverse * (scaled - upstream_mean - standardized * weighted_mean), x.dtype)
            (of_branch,) = computed_first(of_branch)
            of_branches = [of_branch] if residual is None else [of_branch, of_branch]
            column_sums = column_sums_on_gpu if hardware.compiles_for_gpu() else _column_sums
            return column_sums(upstream * standardized), column_sums(upstream), *of_branches

        return tf.cast(standardized * gamma + beta, x.dtype), gradient

    branches = [branch for branch in (x, residual) if branch is not None]
    return normalized(tf.convert_to_tensor(gamma), tf.convert_to_tensor(beta), *branches)


def _moments_on_gpu(x: tf.Tensor, residual: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the sum of the branches in float32 [..., H], its mean and its variance [..., 1].

    Each kernel reads the branches in their own dtype and adds them again, so the sum is not written to memory. The mean
    square minus the square of the mean would need one kernel less, but it is wrong if the mean is large.
    """
    branches, width = ([x] if residual is None else [x, residual]), x.shape[-1]
    total, *branches = computed_first(_row_sum(cpu_kernels.total_in_float32(*branches)), *branches)
    deviation = cpu_kernels.total_in_float32(*branches) - total / width
    squares, total, *branches = computed_first(_row_sum(tf.square(deviation)), total, *branches)
    return cpu_kernels.total_in_float32(*branches), total / width, squares / width


def _column_sums(x: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(x, axis=list(range(len(x.shape) - 1)))


def _row_sum(x: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(x, axis=-1, keepdims=True)


def _row_mean(x: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(x, axis=-1, keepdims=True)


def softmax(scores: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """Returns the softmax of scores + bias along the last axis.

    Args:
      scores: [..., T].
      bias: float32, of a shape that broadcasts to the shape of the scores; no gradient flows into it.

    Returns:
      [..., T], float32. The gradient has the dtype of the scores.
    """
    bias = tf.stop_gradient(bias)
    # In float32, TensorFlow's operations are as fast as the compiled ones.
    if scores.dtype != tf.float32 and cpu_kernels.apply_to(scores):
        return cpu_kernels.softmax(scores, bias)
    return tf.nn.softmax(cpu_kernels.total_in_float32(scores, bias))


def weighted_sum_on_tpu(
    scores: tf.Tensor, bias: tf.Tensor, value: tf.Tensor, drop: Callable[[tf.Tensor], tf.Tensor]
) -> tf.Tensor:
    """Returns drop(softmax(scores + bias)) times value: [..., T, D].

    The gradient of softmax needs the sum of each row of the probabilities times their gradient. TensorFlow's gradient
    computes it in a separate pass over [..., T, T]. It equals the sum of the result times its gradient over D.

    Args:
      scores: [..., T, T].
      bias: see `softmax`.
      value: [..., T, D].
      drop: drops elements of the probabilities, and returns them in the dtype of the values.
    """

    @tf.custom_gradient
    def weighted(scores: tf.Tensor, value: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        probabilities = softmax(scores, bias)
        result = tf.matmul(drop(probabilities), value)

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            with tf.GradientTape() as tape:
                tape.watch(probabilities)
                dropped = drop(probabilities)
            of_probabilities = tape.gradient(dropped, probabilities, tf.matmul(upstream, value, transpose_b=True))
            row_sum = _row_sum(tf.cast(result, tf.float32) * tf.cast(upstream, tf.float32))
            of_scores = tf.cast(probabilities * (of_probabilities - row_sum), scores.dtype)
            return of_scores, tf.matmul(dropped, upstream, transpose_a=True)

        return result, gradient

    return weighted(scores, value)
