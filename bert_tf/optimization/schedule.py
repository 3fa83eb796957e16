"""The learning-rate schedule: linear warm-up, then polynomial decay."""

import tensorflow as tf

from bert_tf.optimization.settings import OptimizerConfig


def learning_rate(config: OptimizerConfig, step: tf.Tensor) -> tf.Tensor:
    """Returns the learning rate, a scalar, of the next update after `step` finished steps, as in the original code.

    The learning rate decays from the peak (linearly in the original code). During warm-up it rises linearly instead.
    The first step of warm-up has learning rate 0. At the end of warm-up, the learning rate jumps down, because the
    decay begins at step 0.
    """
    step = tf.cast(step, tf.float32)
    second, power = config.second_schedule, config.lr_decay_power
    if second is None:
        return _polynomial(step, config.learning_rate, config.num_warmup_steps, config.num_train_steps, power)
    return tf.where(
        step < second.start,
        _polynomial(step, config.learning_rate, config.num_warmup_steps, second.start, power),
        _polynomial(
            step - second.start,
            second.learning_rate,
            second.num_warmup_steps,
            config.num_train_steps - second.start,
            power,
        ),
    )


def _polynomial(step: tf.Tensor, peak: float, num_warmup_steps: int, num_steps: int, power: float) -> tf.Tensor:
    """Returns the learning rate: linear warm-up to a peak, and polynomial decay, which reaches 0 at `num_steps`."""
    # TensorFlow's graph optimizer turned the original division into a multiplication by the reciprocal. Near the end of
    # training, the two differ by more than the last digit of a float32.
    rest = 1.0 - tf.minimum(step, num_steps) * tf.constant(1.0 / num_steps, tf.float32)
    peak = tf.constant(peak, tf.float32)
    decayed = peak * (rest if power == 1 else rest**power)
    if num_warmup_steps == 0:
        return decayed
    return tf.where(step < num_warmup_steps, peak * (step / num_warmup_steps), decayed)
