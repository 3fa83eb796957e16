"""Splits text into the pieces of a vocabulary, by the release's rules.

    vocabulary          vocabulary files and their checks, special tokens
    characters          the rules about single characters
    tokenizers          Basic-, Wordpiece- and FullTokenizer, in Python; they need `memo` and `traced_text`
    graph_tokenization  the same tokenizer as TensorFlow operations, for exported models; its tables: `graph_characters`

May import `runtime` only. Users import the release's names from here. Only the graph modules need TensorFlow.
"""

from bert_tf.tokenization.characters import split_words
from bert_tf.tokenization.tokenizers import (
    BasicTokenizer,
    FullTokenizer,
    WordpieceTokenizer,
    convert_by_vocab,
    convert_ids_to_tokens,
    convert_to_unicode,
    convert_tokens_to_ids,
    load_tokenizer,
    printable_text,
    whitespace_tokenize,
)
from bert_tf.tokenization.vocabulary import load_vocab, validate_case_matches_checkpoint

__all__ = [
    "BasicTokenizer",
    "FullTokenizer",
    "WordpieceTokenizer",
    "convert_by_vocab",
    "convert_ids_to_tokens",
    "convert_to_unicode",
    "convert_tokens_to_ids",
    "load_tokenizer",
    "load_vocab",
    "printable_text",
    "split_words",
    "validate_case_matches_checkpoint",
    "whitespace_tokenize",
]
