"""Updates the weights: optimizers, learning-rate schedule, and float16's loss scale.

    settings    the settings of the optimizers and the schedule
    schedule    the learning rate of each step
    optimizers  the original Adam with weight decay, and LAMB; selects the variables with weight decay
    loss_scale  the dynamic loss scale

May import `distribution` and `runtime` only. `training` uses this package; users import the names below from here.
"""

from bert_tf.runtime import lazy_imports

__getattr__, __dir__, __all__ = lazy_imports.when_used(
    __name__,
    {
        "bert_tf.optimization.settings": ("OPTIMIZERS", "OptimizerConfig", "SecondSchedule"),
        "bert_tf.optimization.schedule": ("learning_rate",),
        "bert_tf.optimization.optimizers": (
            *("OPTIONAL_STATE", "SLOTS", "TRAINING_STATE"),
            *("AdamWeightDecay", "Lamb", "Optimizer", "build_optimizer", "is_decayed"),
        ),
        "bert_tf.optimization.loss_scale": ("LossScale",),
    },
)
