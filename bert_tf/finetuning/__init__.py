"""Fine-tuning of any task: features in memory, models, a run, and the choice between several runs.

    feature_sets      tokenized examples in memory, and the batch of each training step
    row_counts        the tokens of a batch without padding
    hyperparameters   the values that are chosen on the dev set, and the grid of a sweep
    models            the encoder with one output layer: classes, tags or answer spans
    task              the interface that every task implements
    input_pipeline    the examples of each step, as the training loop reads them
    run               one task, one model and one folder: tokenize, train, restore, predict
    selection         evaluation during training: the best weights, and early stopping
    trials            several runs with different hyperparameters; the best one is used
    workflow          all steps from the data to the results, as a program's flags ask for them
    reports           tables, curves and result files of a run

`serving`, `tasks`, `estimators` and the programs import this package. It imports `training`, `pretraining` and the
layers below. A task implements `task.Task`, or `task.ReportingTask`, and an estimator calls `workflow.carry_out`.
"""
