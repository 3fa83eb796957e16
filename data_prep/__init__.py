"""Data preparation: text to the files that `run_pretraining.py` reads."""

import os

# No matrices are multiplied here, and starting threads for it takes NumPy as long as the rest of its import.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
