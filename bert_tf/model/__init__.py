"""The components of the transformer: activations, dropout, normalisation, layers, output layers, BiLSTM.

The directory imports `config` and `runtime`. `bert_tf.encoder` combines the components.
"""

from bert_tf.runtime import lazy_imports

lazy_imports.require_backend()
