"""Example of user code for type checkers. Each wrong line names the errors that mypy and pyright must report."""

from collections.abc import Sequence
from typing import Any, assert_type

import numpy as np

import bert_tf
from bert_tf import api
from bert_tf.api.token_classifier import TaggedEntity
from bert_tf.checkpoints.pretrained import LoadedBert
from bert_tf.text import Tokenizer

x, y = ["a fine film", "a dull film"], ["good", "bad"]

classifier = bert_tf.Classifier.from_pretrained("model", labels=["good", "bad"], max_seq_length=32, dtype="bfloat16")
assert_type(classifier, bert_tf.Classifier)
assert_type(api.Classifier.load("directory"), bert_tf.Classifier)
assert_type(classifier.fit(x, y, epochs=3, batch_size=8, learning_rate=5e-5, evaluate_every=100), dict[str, float])
assert_type(
    classifier.fit(x, y, num_train_epochs=1, seed=1, selection_metric="f1", validation_split=0.1), dict[str, float]
)
assert_type(classifier.predict_proba(x), np.ndarray)
assert_type(classifier.history(), list[dict[str, Any]])
assert_type(classifier.tokenizer, Tokenizer)
weights: dict[str, float] = {"good": 2.0}
bert_tf.Classifier.from_pretrained("model", output_dir="run", class_weights=weights, long_documents="windows")
bert_tf.Regressor.from_pretrained("model", doc_stride=64)
bert_tf.QuestionAnswerer.from_pretrained("model", version_2_with_negative=True)
tagger = bert_tf.TokenClassifier.from_pretrained("model", labels=["PER"], tag_scheme="iob2")
assert_type(tagger.predict_entities([["Ada"]]), list[list[TaggedEntity]])
classifier.export("directory", quantize="int8", onnx=True)

pretrainer = bert_tf.Pretrainer("tiny", "vocab.txt", objective="mlm")
assert_type(pretrainer.fit("data.tfrecord", num_train_steps=10, max_predictions_per_seq=20), dict[str, float])
assert_type(bert_tf.load_model("model"), LoadedBert)
assert_type(bert_tf.load_tokenizer("model"), Tokenizer)
assert_type(bert_tf.SentenceEncoder.from_pretrained("model").encode(x), np.ndarray)


def guesses(filler: bert_tf.FillMask) -> Sequence[str]:
    return [guess.token for guess in filler("a [MASK]")[0]]


print(bert_tf.Clasifier)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
classifier.fitt(x, y)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
classifier.fit(x, y, num_train_epoch=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
classifier.fit(x, y, learning_rate="high")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
classifier.fit(x, y, optimizer="sgd")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
classifier.fit(x, y, dtype="bfloat16")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
classifier.fit(x, y, output_dir="run")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
classifier.fit(x, y, selection_metric="f2")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
classifier.export("directory", quantise="int8")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
bert_tf.Classifier.from_pretrained("model", tag_scheme="iob2")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
bert_tf.MultipleChoice.from_pretrained("model", doc_stride=64)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
bert_tf.Regressor.from_pretrained("model", labels=["good"])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
bert_tf.Pretrainer("tiny", "vocab.txt", num_train_steps=10)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
pretrainer.fit("data.tfrecord", objective="mlm")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
