"""Splits texts into tokens, by the original rules.

    vocabulary          vocabulary files and their checks, special tokens
    tokenizer_config    the rules of a model's tokenizer: finds, checks and writes them
    characters          the rules for single characters
    splitting           BasicTokenizer and WordpieceTokenizer; they need `traced_text` and `memo`
    tokenizers          Tokenizer: texts to tokens, ids and batches, and back

`sequences` joins the tokens to input sequences of the model. Both packages are one layer, and may import `runtime`.
Each rule is implemented once, and one table of cases tests all modules that use the rule. This package exports the
names of the original tokenization.py. No module needs TensorFlow.
"""

from bert_tf.text.characters import split_words
from bert_tf.text.splitting import (
    BasicTokenizer,
    WordpieceTokenizer,
    convert_by_vocab,
    convert_ids_to_tokens,
    convert_to_unicode,
    convert_tokens_to_ids,
    printable_text,
    whitespace_tokenize,
)
from bert_tf.text.tokenizer_config import validate_case_matches_checkpoint
from bert_tf.text.tokenizers import FullTokenizer, Tokenizer
from bert_tf.text.vocabulary import load_vocab

__all__ = [
    "BasicTokenizer",
    "FullTokenizer",
    "Tokenizer",
    "WordpieceTokenizer",
    "convert_by_vocab",
    "convert_ids_to_tokens",
    "convert_to_unicode",
    "convert_tokens_to_ids",
    "load_vocab",
    "printable_text",
    "split_words",
    "validate_case_matches_checkpoint",
    "whitespace_tokenize",
]
