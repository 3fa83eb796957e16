"""Text to pieces of the vocabulary, by the released rules: in Python (`tokenizers`), and in a graph.

Imports `runtime`, and offers the release's names. The graph form, which alone needs TensorFlow, is for exported models.
"""

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
    split_words,
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
