"""The transformer's parts: activations, dropout, normalisation, layers, output layers, BiLSTM.

Imports `config` and `runtime`. They are put together in `bert_tf.encoder`.
"""
