"""Scores far from 0 are learned, and every form of the model predicts them."""

import numpy as np
import pytest

import bert_tf
from bert_tf import convert_checkpoint
from bert_tf.checkpoints import run_directory
from tests.api.tiny import LEARN, TEXTS
from tests.conftest import assert_close

SCORES = [100.0 if "fine" in text else 200.0 for text in TEXTS]


def test_scores_far_from_0_are_learned_and_predicted_by_every_form_of_the_model(pretrained, tmp_path):
    regressor = bert_tf.Regressor.from_pretrained(pretrained, output_dir=tmp_path / "run", max_seq_length=16)
    regressor.fit(TEXTS, SCORES, **LEARN)
    right = regressor.predict(TEXTS[:4])
    assert np.abs(right - SCORES[:4]).max() < 10
    scores = regressor.evaluate(TEXTS[:4], SCORES[:4])
    errors = right - SCORES[:4]
    assert scores["mae"] == pytest.approx(np.abs(errors).mean(), rel=1e-4)
    assert scores["rmse"] == pytest.approx(np.sqrt((errors**2).mean()), rel=1e-4)
    assert run_directory.recorded(str(tmp_path / "run"))["target_scale"] == [150.0, 50.0]
    regressor.save(tmp_path / "saved")
    regressor.export(tmp_path / "exported")
    convert_checkpoint.convert(tmp_path / "saved", tmp_path / "hf", "hf")
    convert_checkpoint.convert(tmp_path / "saved", tmp_path / "tf1", "tf1")
    served = bert_tf.export.load(tmp_path / "exported").predict([{"text": text} for text in TEXTS[:4]])
    forms = [
        bert_tf.Regressor.load(tmp_path / "saved").predict(TEXTS[:4]),
        [answer["score"] for answer in served],
        *(
            bert_tf.Regressor.from_pretrained(tmp_path / x, max_seq_length=16).predict(TEXTS[:4])
            for x in ("hf", "saved")
        ),
    ]
    for predictions in forms:
        assert_close(predictions, right, 1e-3)
    # Other scores have another scale, and the model starts from the same predictions.
    for start in (regressor, bert_tf.Regressor.from_pretrained(tmp_path / "hf", max_seq_length=16)):
        start.fit(TEXTS[:2], [1.0, 5.0], epochs=1, batch_size=2, learning_rate=1e-12)
        assert_close(start.predict(TEXTS[:4]), right, 1e-2)


def test_equal_scores_have_no_scale(pretrained, tasks):
    regressor = bert_tf.Regressor.from_pretrained(pretrained, max_seq_length=16)
    regressor.fit(TEXTS[:2], [7, 7], num_train_steps=1)
    assert tasks.pop().target_scale == (7.0, 1.0)
