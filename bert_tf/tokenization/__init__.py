"""Splits text into the tokens of a vocabulary, by the original rules.

    vocabulary          vocabulary files and their checks, special tokens
    tokenizer_config    the rules of a model's tokenizer: finds, checks and writes them
    characters          the rules for single characters
    splitting           BasicTokenizer and WordpieceTokenizer; they need `traced_text`
    tokenizers          Tokenizer: texts to tokens, ids and batches, and back; it needs `memo`
    graph_tokenization  the same tokenizer as TensorFlow operations, for exported models; its tables: `graph_characters`

May import `runtime` and `sequences.packing`. Users import the original's names from here. Only the graph modules need
TensorFlow.
"""

from bert_tf.tokenization.characters import split_words
from bert_tf.tokenization.splitting import (
    BasicTokenizer,
    WordpieceTokenizer,
    convert_by_vocab,
    convert_ids_to_tokens,
    convert_to_unicode,
    convert_tokens_to_ids,
    printable_text,
    whitespace_tokenize,
)
from bert_tf.tokenization.tokenizer_config import validate_case_matches_checkpoint
from bert_tf.tokenization.tokenizers import FullTokenizer, Tokenizer
from bert_tf.tokenization.vocabulary import load_vocab

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
