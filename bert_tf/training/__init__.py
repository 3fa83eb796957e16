"""The training loop for pre-training and fine-tuning. It is independent of the task.

It imports only lower layers. `pretraining`, `finetuning` and higher layers may import it.

- `interface`: the interface between the loop and its callers: model and data.
- `hooks`: the calls that the loop makes every few steps, and repeated evaluations.
- `callbacks`: Keras callbacks as a hook.
- `settings`: the training settings, which do not need TensorFlow.
- `run`: `Run`, the base of pre-training and fine-tuning runs: devices, model and run directory.
- `loop`: `train`, which trains a run.
- `step`: the training step (a directory).
- `estimate`: the report of a dry run.
- `resume`: finds the starting point of a run and restores it.
- `evaluation`: averages a model's metrics over batches, and keeps the best checkpoint.
- `log`: progress bar, `metrics.jsonl`, TensorBoard and plots.
- `loggers`: MLflow and Weights & Biases.
- `worker_checks`: checks that all workers have the same state, settings, data and code.
- `errors`: errors that end training early, and their messages.
"""
