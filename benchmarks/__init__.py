"""Benchmarks of speed, memory and reliability, often against another implementation; results are in docs/results."""

from bert_tf.runtime import lazy_imports

lazy_imports.prepare_tensorflow()
