"""Runs the examples in docstrings: python -m tests.documentation.docstrings NAME...

Outputs are compared as in `<!-- output: predicted -->` blocks; see `outputs`.
"""

import doctest
import pydoc
import sys

import keras
import numpy as np
import tensorflow as tf

import bert_tf
from tests.documentation import outputs
from tests.documentation.pages import Block

# Modules and classes whose examples are run.
NAMES = (
    *(f"bert_tf.{name}" for name in ("Classifier", "Regressor", "MultipleChoice", "TokenClassifier")),
    *(f"bert_tf.{name}" for name in ("QuestionAnswerer", "SentenceEncoder", "Pretrainer", "FillMask")),
    *(f"bert_tf.{name}" for name in ("load_model", "load_tokenizer", "TextToInputs", "Tokenizer")),
    *("bert_tf.checkpoints.pretrained.LoadedBert", "bert_tf.encoder.BertEncoder", "bert_tf.export.load"),
)


class Checker(doctest.OutputChecker):
    """Compares outputs, ignoring numbers and predicted words."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        """Returns True if all expected lines were printed. An example without expected output may print messages."""
        return outputs.missing_line(Block("", 0, "text", want, marker="predicted"), got, every=True) is None


def main(names: list[str]) -> None:
    for name in names:
        found = doctest.DocTestParser().get_doctest(
            pydoc.locate(name).__doc__, {"bert_tf": bert_tf, "keras": keras, "np": np, "tf": tf}, name, None, 0
        )
        assert any(example.want for example in found.examples), f"{name} has no example with an output"
        results = doctest.DocTestRunner(Checker()).run(found)
        assert not results.failed, f"an example of {name} failed"


if __name__ == "__main__":
    main(sys.argv[1:])
