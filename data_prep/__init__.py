"""Data preparation: makes the files for `run_pretraining.py` from text.

    corpus     from text files to tokens on the disk; vocabularies
    examples   from tokens to records and shards
    local      both on one machine; `workers` runs its jobs in processes
    beam       both on many machines

`api` runs the programs from Python. The other modules are programs. May import the modules of `bert_tf` that need no
TensorFlow (see tests/test_architecture.py); `bert_tf` never imports data_prep. Programs import `local` and `beam`,
which import `examples` and `corpus`. `examples` imports `corpus`.
"""

import os

# Matrix multiplications are not needed here, and starting their threads would double NumPy's import time.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
