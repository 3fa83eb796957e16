"""Fine-tuning for all tasks: features in memory, models, runs, and model selection.

    feature_sets        tokenized examples in memory, and the batch of each training step
    finetuning_config   the settings of fine-tuning, including sweeps
    models              the encoder with an output layer: classes, tags or answer spans
    multi_head_model    the encoder with several output layers, each with its own classes
    task                the interface that every task implements, and a task's examples and features
    dev_split           a dev set drawn from the training set
    run                 one task, one model and one run directory: records, checks, predictions
    training_batches    the examples of each training step, packed into rows or padded
    selection           evaluation during training: the best weights, and early stopping
    trials              several runs with different hyperparameters; the best run is used
    finetune            all steps from the data to the results, as selected by a program's flags
    reports             tables, curves and result files of a run

`serving`, `tasks`, `api` and the programs import this package. It imports `training` and lower layers.
A task implements `task.Task`, and an estimator calls `finetune.finetune`.
"""
