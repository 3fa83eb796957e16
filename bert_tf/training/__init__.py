"""The training loop, the same for pre-training and fine-tuning: step, checkpoints, reports, evaluation.

Imports `model`, `checkpoints` and the optimizer; knows no task.
"""
