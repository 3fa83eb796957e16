"""A `SentenceEncoder` learns from pairs, scores and triplets. All forms of the model return the same vectors."""

import json

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from huggingface_hub import ModelCard

import bert_tf
from bert_tf import convert_checkpoint, export
from bert_tf.api.vector_trainer import examples_of, with_scores
from bert_tf.checkpoints import saver
from tests import programs
from tests.conftest import assert_close, assert_refused, tensors_of

pytestmark = [pytest.mark.eager, pytest.mark.plain]
PAIRS = [(word, f"a {word} {word}") for word in ("fine", "poor", "words", "day")]
NEGATIVES = ["day", "here", "fine here", "a"]
TRIPLETS = [(*pair, negative) for pair, negative in zip(PAIRS, NEGATIVES, strict=True)]
SCORES = [1.0, 0.5, 0.0, -0.5]
SCORED = ([pair[::step] for pair in PAIRS for step in (1, -1)], [score for score in SCORES for _ in "ab"])


def encoder_of(pretrained, output_dir=None):
    return bert_tf.SentenceEncoder.from_pretrained(pretrained, max_seq_length=16, output_dir=output_dir)


def test_every_form_of_a_trained_encoder_gives_its_vectors(pretrained, tmp_path):
    encoder, texts = encoder_of(pretrained), [text for pair in PAIRS for text in pair]
    before = encoder.encode(texts)
    assert_refused("no trained model yet", encoder.save, tmp_path / "saved")
    learn = {"epochs": 40, "batch_size": 4, "learning_rate": 5e-3, "evaluate_every": 20}
    scores = encoder.fit(PAIRS, validation_data=PAIRS, pooling="cls", use_best_checkpoint=True, **learn)
    assert scores["eval_recall_at_1"] == encoder.evaluate(PAIRS)["recall_at_1"]
    vectors = encoder.encode(texts)
    assert abs(vectors - before).max() > 0.1
    first, last = (line["loss"] for line in encoder.history() if line["kind"] == "eval")
    assert last < first
    encoder.save(tmp_path / "saved")
    convert_checkpoint.convert(tmp_path / "saved", tmp_path / "hf", "hf")
    card = ModelCard.load(tmp_path / "hf" / "README.md").data
    assert (card.pipeline_tag, card.eval_results[0].metric_type) == ("sentence-similarity", "recall_at_1")
    for directory in ("saved", "hf"):
        other = bert_tf.SentenceEncoder.from_pretrained(tmp_path / directory)
        assert (other.config, other.max_seq_length) == (encoder.config, 16)
        assert_close(other.encode(texts), vectors, 1e-6)
    encoder.export(tmp_path / "exported")
    assert_close(export.load(tmp_path / "exported", "sentence_vectors")(text_a=texts)["vectors"], vectors, 1e-5)
    use = r"has a run of 'similarity'. Use SentenceEncoder.from_pretrained\(\)"
    assert_refused(use, bert_tf.Classifier.load, tmp_path / "saved")


def test_fit_gives_the_weights_of_the_program_and_resumes(pretrained, tmp_path):
    steps = {"num_train_steps": 2, "max_score": 2.0, "learning_rate": 1e-3}
    settings = {"symmetric_loss": True, "gradient_accumulation_steps": 2, "save_checkpoints_steps": 1, **steps}
    columns = ["anchor", "positive", "negative"]
    rows = [dict(zip(columns, texts, strict=True)) for texts in TRIPLETS]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def kill(epoch, logs):
        if epoch == 1:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):  # the same run is then resumed
        killed = keras.callbacks.LambdaCallback(on_epoch_begin=kill)
        encoder_of(pretrained, tmp_path / "ours").fit(TRIPLETS, batch_size=4, **settings, callbacks=[killed])
    assert saver.latest_checkpoint(str(tmp_path / "ours")).endswith("-1")
    for _ in range(2):
        encoder = encoder_of(pretrained, tmp_path / "ours")
        encoder.fit(TRIPLETS, batch_size=4, **settings)
        encoder.fit(*SCORED, batch_size=4, **steps)  # data in another form; starts from the weights of the first run
    flags = {"data_dir": tmp_path, "output_dir": tmp_path / "theirs", "init_checkpoint": pretrained}
    flags |= {"max_seq_length": 16, "train_batch_size": 4, **settings}
    given = (f"--{name}={value}" for name, value in flags.items())
    programs.run("run_classifier.py", "--task_name=similarity", "--do_train", *given)
    first = tensors_of(tmp_path / "ours" / "model.ckpt-2")
    np.testing.assert_equal(first, tensors_of(tmp_path / "theirs"))
    second = tensors_of(tmp_path / "ours" / "fit_2")
    assert any((values != second[name]).any() for name, values in first.items())


def test_all_forms_of_examples_are_read():
    rows = pd.DataFrame(TRIPLETS, columns=["anchor", "positive", "negative"])
    scored = pd.DataFrame(SCORED[0], columns=["sentence1", "sentence2"]).assign(label=SCORED[1])
    dataset = tf.data.Dataset.from_tensor_slices((tuple(map(list, zip(*SCORED[0], strict=True))), SCORED[1]))
    for forms in ([(TRIPLETS,), (rows,), (list(map(list, TRIPLETS)),)], [SCORED, (scored,), (dataset,)]):
        read = [examples_of(*with_scores(data[0], data[1] if data[1:] else None, "x")) for data in forms]
        found = [[(example.texts, example.label) for example in examples] for examples in read]
        assert found[1:] == found[:1] * 2


@pytest.mark.parametrize(
    ("data", "settings", "message"),
    [
        ((["a day"],), {}, "^example 0 is 'a day'. Use a pair or a triplet"),
        ((PAIRS, SCORES[:2]), {}, "4 examples, but 2 labels"),
        ((PAIRS, [3.0] * 4), {}, "^example 0: the score is 3.0. Use a number from -1 to 1, or .* with max_score"),
        ((PAIRS,), {"batch_size": 1}, r"^batch_size=1: the other examples of a batch are the negatives"),
        ((PAIRS[:1] * 4,), {}, "every positive is the same"),
        ((PAIRS,), {"use_best_checkpoint": True}, "need validation data"),
        ((PAIRS,), {"validation_data": PAIRS, "selection_metric": "spearman"}, "no spearman. Use recall_at_1"),
        ((PAIRS,), {"similarity_scale": float("inf")}, "^similarity_scale is inf"),
        ((PAIRS,), {"freeze_encoder": True, "batch_size": 4}, "^all weights are frozen. Omit freeze_encoder"),
        ((PAIRS,), {"sample_weight": [1.0] * 4}, "^sample_weight: SentenceEncoder does not support weights"),
        (([("a", "\ud800")],), {}, "^example 0 has a lone surrogate"),
        (([{"anchor": "a", "positive": "b"}, {"anchor": "a", "positive": "\ud800"}],), {}, "^example 1 has a lone"),
        ((PAIRS, [0.5, 0.5, 0.5, float("nan")]), {}, "^example 3: the score is nan. Use a number.$"),
    ],
)
def test_bad_input_is_refused_before_training(pretrained, data, settings, message):
    assert_refused(message, encoder_of(pretrained).fit, *data, **settings)
