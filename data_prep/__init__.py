"""Data preparation: makes the files for `run_pretraining.py` from text.

    corpus        from text files to tokens on the disk; vocabularies
    examples      from tokens to records and shards
    one_machine   runs both steps on one machine, with the worker processes of `workers`
    beam          runs both steps on many machines
    options       the settings of the programs
    api           runs the programs from Python

The other modules are programs. They import `one_machine` and `beam`, which import `examples` and `corpus`. `examples`
imports `corpus`. This package may import the modules of `bert_tf` that need no TensorFlow (see
tests/test_architecture.py). `bert_tf` never imports data_prep.
"""

import os

# This package multiplies no matrices, and starting threads for it would double NumPy's import time.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
