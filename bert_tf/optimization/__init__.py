"""Updates the weights: optimizers, learning-rate schedule, and float16's loss scale.

    settings    the settings of the optimizers and the schedule
    schedule    the learning rate of each step
    optimizers  the original Adam with weight decay, and LAMB; selects the variables with weight decay
    loss_scale  the dynamic loss scale

It may import only `distribution` and `runtime`. `training` uses this package. Import the names below from here.
"""

from typing import TYPE_CHECKING

from bert_tf.runtime import lazy_imports

if TYPE_CHECKING:
    from bert_tf.optimization.loss_scale import LossScale as LossScale
    from bert_tf.optimization.optimizers import (
        OPTIONAL_STATE as OPTIONAL_STATE,
        SLOTS as SLOTS,
        TRAINING_STATE as TRAINING_STATE,
        AdamWeightDecay as AdamWeightDecay,
        Lamb as Lamb,
        Optimizer as Optimizer,
        build_optimizer as build_optimizer,
        global_norm as global_norm,
        is_decayed as is_decayed,
    )
    from bert_tf.optimization.schedule import learning_rate as learning_rate
    from bert_tf.optimization.settings import (
        OPTIMIZERS as OPTIMIZERS,
        OptimizerConfig as OptimizerConfig,
        SecondSchedule as SecondSchedule,
    )
else:
    __getattr__, __dir__, __all__ = lazy_imports.when_used(__name__)
