"""Answers with exported models: from Python values or JSON lines to answers. `graphs` makes the models.

    export_config        the settings of an export
    answering            the base class of models that take Python values: fields, checks, batches
    saved_model          loads SavedModels and calls them with Python values
    lite_model           runs LiteRT models on texts, without TensorFlow
    line_predictions     answers JSON lines

`tasks` and higher layers import this package. It imports `finetuning` and lower layers.
"""
