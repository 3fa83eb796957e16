"""Exported models that take raw text: the encoder in its fastest form, tokenization inside the graph, and files.

    inference_encoder    the encoder for serving, without padding and with fused operations, and an output layer
    signature_inputs     texts and ids as inputs of a signature, and the computation of many sequences in parts
    pretrained_encoder   a pre-trained model for serving: hidden states, and guesses for [MASK]
    finished_run         a finished run, as the export of its task needs it
    exportable           a model that can be exported, and the files of its export
    export_config        the settings of an export
    answering            what all models that answer Python values share: fields, checks, batches
    saved_model          loads SavedModels and calls them with Python values
    lite_model           answers texts with a LiteRT model, without TensorFlow
    line_predictions     answers to JSON lines

`tasks` and what is above it import this package. It imports `finetuning` and the layers below. The served model of each
task is defined in the task's folder.
"""
