"""The tasks: reading data, features, scores and prediction files. Their served models are in `graphs`.

    registry             the tasks by the names of --task_name
    task_names           the names of the built-in tasks
    setup                the settings, data and trained model that a built-in task is built from
    own_tasks            tasks that other programs add
    sentences            GLUE, your own tables and multiple choice (a directory)
    squad                SQuAD 1.1 and 2.0 (a directory)
    tagging              named entities and other tags of words (a directory)
    data_config          the settings of the tasks and their data
    original_api         the functions and classes of the original programs, with their names
    hf_names             the architecture of a fine-tuned model in Hugging Face's `config.json`
    metrics              the scores of all tasks
    tables               rows of TSV, CSV and JSON-lines files
    arrow_files          rows of Parquet and Arrow files

`graphs`, `export`, `api` and the programs import this package. It imports `serving` and lower layers. The directories
`sentences`, `squad` and `tagging` do not import one another.
"""
