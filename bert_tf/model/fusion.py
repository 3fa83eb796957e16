"""Where XLA divides a computation into kernels. A tensor between two kernels is written to memory and read again."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from bert_tf.distribution import hardware, tensorflow_internals


def computed_first(*tensors: tf.Tensor) -> Sequence[tf.Tensor]:
    """Returns the same tensors. On a GPU, XLA computes them in earlier kernels than the operations that read them.

    Otherwise, XLA also writes float32 intermediate results that are many times as large as the tensors.
    """
    return tensorflow_internals.optimization_barrier(tensors) if hardware.compiles_for_gpu() else tensors


def recomputed_by_xla(function: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[tf.Tensor], tf.Tensor]:
    """Works like `tf.recompute_grad`, but keeps XLA from recomputing the function before its gradient is needed."""

    @tf.custom_gradient
    def recomputed(x: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        def gradient(
            upstream: tf.Tensor, variables: Sequence[tf.Variable] = ()
        ) -> tf.Tensor | tuple[tf.Tensor, list[tf.Tensor]]:
            # The function is recomputed only when the gradient arrives.
            again, upstream = tensorflow_internals.optimization_barrier([x, upstream])
            with tf.GradientTape() as tape:
                tape.watch(again)
                y = function(again)
            of_x, *of_variables = tape.gradient(y, [again, *variables], upstream)
            return (of_x, of_variables) if variables else of_x

        return function(x), gradient

    return recomputed
