"""Exported models that take raw text: a fast encoder, tokenization inside the graph, and the files of an export.

    inference_encoder    the encoder for serving, without padding and with fused operations, and computation in parts
    signature_inputs     texts and ids as inputs of a signature
    text_to_inputs       a Keras layer that converts texts to the inputs of `BertEncoder`
    pretrained_encoder   a pre-trained model for serving: hidden states, and predictions for [MASK]
    exportable           a finished run as an exportable model, and the files of an export
    export_config        the settings of an export
    answering            the base class of models that take Python values: fields, checks, batches
    saved_model          loads SavedModels and calls them with Python values
    lite_model           runs LiteRT models on texts, without TensorFlow
    line_predictions     answers JSON lines

`tasks` and higher layers import this package. It imports `finetuning` and lower layers. The served model of each task
is defined in the task's directory.
"""
