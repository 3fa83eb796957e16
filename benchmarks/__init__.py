"""Speed, memory and endurance, many of them against another implementation; docs/results gives the results."""

import bert_tf  # noqa: F401 (it says how TensorFlow runs, which has to be said before TensorFlow is imported)
