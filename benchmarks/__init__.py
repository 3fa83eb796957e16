"""Benchmarks of speed, memory and reliability, often against another implementation; results are in docs/results."""

import bert_tf  # noqa: F401 (it configures TensorFlow, which must happen before TensorFlow is imported)
