"""Pre-training. It imports only lower layers. `finetuning` and higher layers may import it.

- `run`: `pretrain`, which `run_pretraining.py` calls, and `PretrainingRun`, which checks data and settings.
- `training_batches`: the phases of a run, and the batches of each step.
- `evaluation`: evaluates on held-out data during training, and at the end.
- `example_sets`: finds the examples of a run and checks that they match the model.
- `record_shards`: finds, counts and checks TFRecord files.
- `record_reader`: reads single records at any position.
- `input_pipeline`: reads, shuffles and batches records. The batch of each step is reproducible.
- `packed_examples`: packs the examples of a step into rows.
- `model`: the encoder with the heads and the loss of a pre-training objective.
- `pretraining_config`: the settings of pre-training.
- `recipes`: the objectives, and published settings as values of flags.
"""
