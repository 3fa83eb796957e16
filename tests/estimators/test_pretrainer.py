"""Pre-training from Python: the weights of the program, and models to go on with."""

import pathlib

import numpy as np
import pytest

import bert_tf
from bert_tf.config import BertConfig
from bert_tf.runtime.files import InputError
from tests import programs
from tests.estimators.tiny import weights_of
from tests.programs import LENGTH, PREDICTIONS

pytestmark = pytest.mark.plain

LENGTHS = {"max_seq_length": LENGTH, "max_predictions_per_seq": PREDICTIONS}
FIT = {**LENGTHS, "max_steps": 3, "batch_size": 8, "learning_rate": 1e-3, "warmup_proportion": 0.4}


def test_weights_are_those_of_the_program_and_classifiers_start_from_them(tmp_path):
    config, vocab = programs.write_model_files(tmp_path)
    data = [programs.write_pretraining_data(tmp_path / f"{name}.tfrecord", 40, seed=i) for i, name in enumerate("ab")]
    bert_config = BertConfig.from_json_file(config)
    pretrainer = bert_tf.Pretrainer(bert_config, vocab, output_dir=str(tmp_path / "ours"))
    with pytest.raises(InputError, match=r"Pretrainer: there is no trained model yet; call fit\(\)"):
        pretrainer.save(str(tmp_path / "saved"))
    with pytest.raises(InputError, match="keep_best needs validation_data"):
        pretrainer.fit(data[0], keep_best=True, **FIT)
    with pytest.raises(TypeError, match=r"Pretrainer\.fit\(\) has no argument 'epochs'"):
        pretrainer.fit(data[0], epochs=1, **FIT)
    objects = map(pathlib.Path, data)
    scores = pretrainer.fit(next(objects), validation_data=next(objects), evaluate_every=2, keep_best=True, **FIT)
    assert scores["masked_lm_loss"] > 0
    assert [line["step"] for line in pretrainer.history() if line["kind"] == "eval"] == [2, 3]
    flags = {
        **LENGTHS,
        "bert_config_file": config,
        "vocab_file": vocab,
        "input_file": data[0],
        "output_dir": tmp_path / "theirs",
        "num_train_steps": 3,
        "num_warmup_steps": 1,
        "train_batch_size": 8,
        "learning_rate": 1e-3,
    }
    programs.run("run_pretraining.py", "--do_train", *(f"--{name}={value}" for name, value in flags.items()))
    ours, theirs = (weights_of(tmp_path / run / "model.ckpt-3") for run in ("ours", "theirs"))
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(value, theirs[name]) for name, value in ours.items())
    pretrainer.save(str(tmp_path / "saved"))
    further = bert_tf.Pretrainer.from_pretrained(str(tmp_path / "saved"), objective="mlm")
    assert further.config == bert_config
    assert further._init_checkpoint == str(tmp_path / "saved")
    loaded = bert_tf.load(str(tmp_path / "saved"))
    assert np.array_equal(
        loaded.encoder.weights[0].numpy(), weights_of(tmp_path / "ours" / "best")[loaded.encoder.weights[0].path]
    )


def test_a_size_is_that_of_the_vocabulary(tmp_path):
    _, vocab = programs.write_model_files(tmp_path)
    assert bert_tf.Pretrainer("tiny", vocab).config == BertConfig.named("tiny", vocab_size=len(programs.PIECES))
    with pytest.raises(InputError, match="there is no model size 'huge'"):
        bert_tf.Pretrainer("huge", vocab)
