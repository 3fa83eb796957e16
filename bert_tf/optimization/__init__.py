"""Updates the weights: the optimizers, the learning rate's schedule, and float16's loss scale.

    settings    the settings of all of them, checked
    schedule    the learning rate of each step
    optimizers  the released Adam with weight decay, and LAMB; which variables have weight decay
    loss_scale  the dynamic loss scale

May import `runtime` only. `training` applies what is here; users import the names below from here.
"""

from bert_tf.optimization.loss_scale import LossScale
from bert_tf.optimization.optimizers import (
    OPTIONAL_STATE,
    SLOTS,
    TRAINING_STATE,
    AdamWeightDecay,
    Lamb,
    Optimizer,
    build_optimizer,
    is_decayed,
)
from bert_tf.optimization.schedule import learning_rate
from bert_tf.optimization.settings import CLIPPINGS, OPTIMIZERS, OptimizerConfig, SecondSchedule

__all__ = [
    "CLIPPINGS",
    "OPTIMIZERS",
    "OPTIONAL_STATE",
    "SLOTS",
    "TRAINING_STATE",
    "AdamWeightDecay",
    "Lamb",
    "LossScale",
    "Optimizer",
    "OptimizerConfig",
    "SecondSchedule",
    "build_optimizer",
    "is_decayed",
    "learning_rate",
]
