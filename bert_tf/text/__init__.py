"""Splits texts into tokens and joins the tokens to input sequences of the model, by the original rules.

Tokens:

    vocabulary          vocabulary files and their checks, special tokens
    tokenizer_config    the rules of a model's tokenizer: finds, checks and writes them
    characters          the rules for single characters
    splitting           BasicTokenizer and WordpieceTokenizer; they need `traced_text` and `memo`
    tokenizers          Tokenizer: texts to tokens, ids and batches, and back
    graph_tokenization  the same tokenizer as TensorFlow operations, for exported models; its tables: `graph_characters`

Sequences:

    packing, graph_packing    [CLS] A [SEP] B [SEP] and truncation: rules, lists and NumPy batches; tensors
    text_packer               TextPacker: texts to sequences; long texts: both ends, or windows
    masking, graph_masking    masked-LM rules, NumPy batches and the original order; tensors
    placement, packed_rows    several sequences in one row of a batch: their positions; the arrays
    random_streams            random numbers that do not depend on how work is divided
    example_format            features of the records, metadata files of the shards

May import `runtime`. Each rule is implemented once, and one table of cases tests all modules that use the rule. This
package exports the names of the original tokenization.py. Only the `graph_*` modules need TensorFlow.
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
