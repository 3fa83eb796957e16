"""The default paths of the benchmarks' data, in the folder of shared data next to the checkout."""

import os

SHARED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "shared")
# The vocabulary of an uncased model.
VOCAB_FILE = f"{SHARED}/golden/tokenization/vocab.txt"
QNLI_FOLDER = f"{SHARED}/data/glue/QNLI"
WNLI_FOLDER = f"{SHARED}/data/glue/WNLI"
SQUAD_FILE = f"{SHARED}/data/squad/dev-v1.1.json"
BOOKS_FOLDER = f"{SHARED}/data/pretrain"
CODAH_FOLDER = f"{SHARED}/data/codah"
WNUT_FOLDER = f"{SHARED}/data/ner/wnut17"
