"""Data preparation: makes the files that `run_pretraining.py` reads from text.

    corpus     from text files to tokens on the disk; vocabularies
    examples   from tokens to records and shards
    jobs       the work of both, divided among processes and machines

`api` calls the programs from Python. The other modules are programs. May import the modules of `bert_tf` that need no
TensorFlow (see tests/test_architecture.py); `bert_tf` never imports data_prep. Programs import folders, `jobs` imports
`examples` and `corpus`, `examples` imports `corpus`.
"""

import os

# Nothing here multiplies matrices, but the start of the threads for it would double NumPy's import time.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
