"""Where XLA divides a computation into kernels. A tensor between two kernels is written to memory and read again."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from bert_tf.distribution import hardware, tensorflow_internals

_ROWS_PER_GROUP = 128, 32


def computed_first(*tensors: tf.Tensor) -> Sequence[tf.Tensor]:
    """Returns the same tensors. On a GPU, XLA computes them in earlier kernels than the operations that read them.

    Otherwise, XLA also writes float32 intermediate results that are many times as large as the tensors.
    """
    return tensorflow_internals.optimization_barrier(tensors) if hardware.compiles_for_gpu() else tensors


@tf.custom_gradient
def product_on_gpu(x: tf.Tensor, kernel: tf.Tensor) -> tuple[tf.Tensor, Callable]:
    """Returns x [n, in] times a float32 kernel [in, out], in x's dtype. The kernel's gradient is written in float32.

    Otherwise, XLA would write the gradient in x's dtype, read it, and write it again in float32.
    """
    rounded = tf.cast(kernel, x.dtype)

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        # If query, key and value had the same factor x, XLA would join their multiplications, and copy other factors.
        left, right = computed_first(x, upstream)
        of_kernel = tf.raw_ops.BatchMatMulV3(x=left, y=right, adj_x=True, Tout=tf.float32)
        return tf.matmul(upstream, rounded, transpose_b=True), of_kernel

    return tf.matmul(x, rounded), gradient


def column_sums_on_gpu(rows: tf.Tensor) -> tf.Tensor:
    """Returns the column sums [H] of [..., H], in float32.

    The kernel that computes the rows also adds up groups of them. XLA does so by itself only for tens of thousands of
    rows; otherwise, it writes the rows in float32 and reads them again.
    """
    rows = tf.reshape(tf.cast(rows, tf.float32), [-1, rows.shape[-1]])
    count = rows.shape[0]
    size = next((size for size in _ROWS_PER_GROUP if count and count % size == 0), None)
    if size:
        (rows,) = computed_first(tf.reduce_sum(tf.reshape(rows, [-1, size, rows.shape[-1]]), axis=1))
    return tf.reduce_sum(rows, axis=0)


def recomputed_by_xla(function: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Works like `tf.recompute_grad`, but keeps XLA from recomputing the function before its gradient is needed."""

    @tf.custom_gradient
    def recomputed(*inputs: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        def gradient(
            upstream: tf.Tensor, variables: Sequence[tf.Variable] = ()
        ) -> list[tf.Tensor] | tuple[list[tf.Tensor], list[tf.Tensor]]:
            # The function is recomputed only when the gradient arrives.
            *again, upstream = tensorflow_internals.optimization_barrier([*inputs, upstream])
            with tf.GradientTape() as tape:
                tape.watch(again)
                y = function(*again)
            gradients = tape.gradient(y, [*again, *variables], upstream)
            of_inputs, of_variables = gradients[: len(inputs)], gradients[len(inputs) :]
            return (of_inputs, of_variables) if variables else of_inputs

        return function(*inputs), gradient

    return recomputed
