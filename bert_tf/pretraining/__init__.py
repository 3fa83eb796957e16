"""Pre-training. Imports only from lower layers; `finetuning` and everything above may import it.

- `run`: `PretrainingRun`, which checks, trains and evaluates. `run_pretraining.py` calls it.
- `data`: finds the examples of a run and checks that they fit the model.
- `record_shards`: finds, counts and checks TFRecord files.
- `record_reader`: reads single records, wherever they are.
- `input_pipeline`: reads, shuffles and batches records, so that the batch of every step is known.
- `model`: the encoder with the heads and the loss of an objective.
- `recipes`: the objectives, and published settings as values of flags.
"""
