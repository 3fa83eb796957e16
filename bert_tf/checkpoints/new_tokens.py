"""Adds embeddings of new tokens to a model."""

import os

import numpy as np

from bert_tf.config import BertConfig
from bert_tf.text import Tokenizer
from bert_tf.text.vocabulary import VOCAB_FILE

_TABLE, _BIAS = "bert/embeddings/word_embeddings", "cls/predictions/output_bias"


def add_embeddings(
    weights: dict[str, np.ndarray], config: BertConfig, tokenizer: Tokenizer, directory: str, method: str
) -> BertConfig:
    """Adds the embeddings and the masked-LM biases of new tokens to the weights of a model.

    If the embedding table has enough unused rows at the end, its size does not change.

    Args:
      weights: maps released names to arrays; changed in place.
      config: the model's config.
      tokenizer: the model's tokenizer, without the new tokens.
      directory: the directory with the vocabulary and the settings of the new tokenizer.
      method: "mean" uses the mean embedding of the tokens that the old tokenizer splits the new token into, or of all
        tokens if there are none; "random" draws from the initializer's distribution.

    Returns:
      The config with the new vocabulary size.
    """
    vocab = Tokenizer(os.path.join(directory, VOCAB_FILE), **tokenizer.rules).vocab
    size = max(config.vocab_size, len(vocab))
    generator = np.random.default_rng(0)
    new = [(token, number) for token, number in vocab.items() if token not in tokenizer.vocab]
    for name in (_TABLE, _BIAS):
        if name in weights:
            old = weights[name]
            weights[name] = np.concatenate([old, np.zeros((size - len(old), *old.shape[1:]), old.dtype)])
            for token, number in new:
                before = old[tokenizer.encode(token) or slice(None)]
                spread = config.initializer_range if name == _TABLE else 0.0
                weights[name][number] = (
                    before.mean(axis=0) if method == "mean" else generator.normal(0.0, spread, old.shape[1:])
                )
    return config.replace(vocab_size=size)
