"""The training loop, which is the same for pre-training and fine-tuning. It knows no task.

Imports only from lower layers; `pretraining`, `finetuning` and everything above may import it.

- `contract`: the interface between the loop and its callers: model, data and evaluation.
- `settings`: the settings of training, which need no TensorFlow.
- `loop`: `train`, which runs the whole training, and `Trainer`, which runs its steps.
- `resume`: finds the starting point of a run and restores it.
- `evaluation`: averages a model's metrics over batches, and keeps the best checkpoint.
- `metric_means`: sums metrics on the devices.
- `details`: gradient norms by part of the model and other details of a step.
- `log`: progress bar, `metrics.jsonl`, TensorBoard and plots.
- `agreement`: checks that all workers have the same state, settings, data and code.
- `nonfinite`: counts the steps that are not finite.
- `errors`: the ways in which training ends early, and their messages.
"""
