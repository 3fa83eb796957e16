"""The tasks: reading data, features, scores, prediction files, and served models.

    registry             the tasks by the names of --task_name
    task_names           the names of the built-in tasks
    setup                the settings, data and trained model that a built-in task is built from
    own_tasks            tasks that other programs add
    glue                 GLUE's nine tasks and XNLI
    glue_benchmark       several GLUE tasks in one run, the row of the paper's Table 1, the file for the GLUE server
    text                 classification or regression of your own data
    text_reader          texts and labels in files with named columns, or in memory
    multiple_choice      SWAG, CODAH, and your own prompts with endings
    squad                SQuAD 1.1 and 2.0 (a directory)
    tagging              named entities and other tags of words (a directory)
    data_config          the settings of the tasks and their data
    sentence_task        labels, scores and prediction files of all sentence tasks
    examples             examples of sentence tasks, and the base class of readers
    soft_labels          probabilities as labels, for distillation
    original_api         the functions and classes of the original programs, with their names
    hf_names             the architecture of a fine-tuned model in Hugging Face's `config.json`
    metrics              the scores of all tasks
    tables               rows of TSV, CSV and JSON-lines files
    graph_classifier     served models of sentence tasks and multiple choice
    graph_heads          served models with several output layers

`export`, `api` and the programs import this package. It imports `serving` and lower layers. The directories `squad` and
`tagging` do not import other tasks.
"""
