"""The components of the transformer: activations, dropout, normalisation, layers, output layers, BiLSTM.

The directory imports `config` and `runtime`. `bert_tf.encoder` combines the components.
"""
