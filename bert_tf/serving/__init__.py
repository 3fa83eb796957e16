"""Exported models that take raw text: a fast encoder, tokenization inside the graph, and the files of an export.

    inference_encoder    the encoder for serving, without padding and with fused operations, and an output layer
    signature_inputs     texts and ids as inputs of a signature, and computation in parts
    pretrained_encoder   a pre-trained model for serving: hidden states, and predictions for [MASK]
    finished_run         a finished run, as input of its task's export
    exportable           a model that can be exported, and the files of its export
    export_config        the settings of an export
    answering            the base of all models that answer Python values: fields, checks, batches
    saved_model          loads SavedModels and calls them with Python values
    lite_model           answers texts with a LiteRT model, without TensorFlow
    line_predictions     answers to JSON lines

`tasks` and higher layers import this package. It imports `finetuning` and lower layers. The served model of each task
is defined in the task's folder.
"""
