"""BERT in TensorFlow 2, with the numbers, names and file formats of the original code."""

import os
from typing import TYPE_CHECKING

from bert_tf.runtime import __version__ as __version__, lazy_imports, moved as moved

if TYPE_CHECKING:
    from bert_tf.api import (
        Classifier as Classifier,
        MultipleChoice as MultipleChoice,
        Pretrainer as Pretrainer,
        QuestionAnswerer as QuestionAnswerer,
        Regressor as Regressor,
        SentenceEncoder as SentenceEncoder,
        TokenClassifier as TokenClassifier,
    )
    from bert_tf.checkpoints.pretrained import LoadedBert
    from bert_tf.fill_mask import FillMask as FillMask
    from bert_tf.graphs.keras_layer import TextToInputs as TextToInputs
    from bert_tf.text import Tokenizer as Tokenizer
else:
    # Importing TensorFlow takes seconds, and data preparation does not need it.
    __getattr__, __dir__, __all__ = lazy_imports.when_used(__name__)
    __all__ += ["load_model", "load_tokenizer"]


def load_model(
    path: str | os.PathLike[str], do_lower_case: bool | None = None, dtype: str | None = None
) -> "LoadedBert":
    """Loads an encoder with its tokenizer and config. For details see `bert_tf.checkpoints.pretrained.load_model`.

    Examples:
      >>> bert = bert_tf.load_model("build/quickstart/pretrained")
      >>> bert.config.hidden_size, bert.source.path
      (128, 'build/quickstart/pretrained/model.ckpt-1200')

    Args:
      path: a directory, a checkpoint prefix, a Hugging Face Hub name (`owner/name`), or a released zip file or its URL.
      do_lower_case: the casing of the tokenizer. Default: the setting of the model.
      dtype: the dtype of matrix multiplications: "float32", "bfloat16" or "float16". Default: Keras's global policy.

    Returns:
      A `LoadedBert`: the encoder, its tokenizer, its config and the checkpoint.

    Raises:
      InputError: if a file is missing, or checkpoint, config and vocabulary do not match.
    """
    lazy_imports.prepare_tensorflow()
    from bert_tf.checkpoints import pretrained

    return pretrained.load_model(path, do_lower_case, dtype)


def load_tokenizer(path: str | os.PathLike[str], do_lower_case: bool | None = None) -> "Tokenizer":
    """Loads the tokenizer of a model, without its weights.

    Examples:
      >>> tokenizer = bert_tf.load_tokenizer("build/quickstart/pretrained")
      >>> tokenizer.tokenize("The whale was great.")
      ['the', 'whale', 'was', 'great', '.']

    Args:
      path: see `load_model`.
      do_lower_case: see `load_model`.

    Returns:
      A `Tokenizer`.

    Raises:
      InputError: if there is no vocabulary, or if checkpoint, config and vocabulary do not match.
    """
    from bert_tf.checkpoints import pretrained

    checkpoint, _, tokenizer = pretrained.find_model(path, "load_tokenizer()", do_lower_case)
    return pretrained.required_tokenizer(tokenizer, checkpoint, "load_tokenizer()")
