"""Graph versions of Python modules, for exported models. The list has the Python modules in parentheses.

You can skip this package; tests/graphs checks that both versions agree.

    exportable      a finished run as an exportable model, and the files of an export
    encoder         the encoder without padding and with fused operations (`bert_tf.encoder`)
    tokenization    the tokenizer (`text.splitting`); its tables: `characters` (`text.characters`)
    packing         [CLS] A [SEP] B [SEP] and truncation (`sequences.packing`, `sequences.text_packer`)
    text_reader     texts and ids as inputs of a signature
    pretrained      a pre-trained model: hidden states, and predictions for [MASK] (`features`, `fill_mask`)
    classifier      sentence tasks and multiple choice (`tasks.sentences`)
    heads           models with several output layers (`finetuning.multi_head_model`)
    answers         windows and answers of questions (`tasks.squad`)
    tags            the tags of words and of texts (`tasks.tagging`)
    keras_layer     `TextToInputs`, a Keras layer that converts texts to the inputs of `BertEncoder`

`export`, `api` and the programs import this package. It imports `tasks` and lower layers.
"""
