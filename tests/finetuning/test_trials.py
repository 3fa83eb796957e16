import json
import re

import numpy as np
import pytest

from bert_tf.checkpoints import saver
from bert_tf.config import BertConfig
from bert_tf.finetuning import trials
from bert_tf.finetuning.hyperparameters import Hyperparameters, count_steps, fresh_variables, hyperparameter_grid
from bert_tf.finetuning.trials import TrialTable
from bert_tf.runtime.files import InputError
from tests.conftest import tiny_config

SCORES = {1: 0.5, 2: 0.75, 3: 0.7}


def test_steps_are_counted_as_the_release_counts_them():
    assert count_steps(3668, 32, 3.0, 0.1) == (343, 34)
    assert count_steps(3668, 32, 3.0, 0.1, num_train_steps=500) == (500, 50)
    assert count_steps(5, 32, 3.0, 0.1, num_train_steps=1) == (1, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((5, 32, 3.0, 0.1), "5 examples .* --train_batch_size=32"),
        ((5, 0, 3.0, 0.1), "--train_batch_size is 0"),
        ((5, 1, "3", 0.1), "--num_train_epochs is '3'"),
        ((5, 1, 3.0, 2.0), "--warmup_proportion is 2.0"),
        ((5, 32, 3.0, 0.1, -1), "--num_train_steps is -1"),
    ],
)
def test_steps_that_cannot_be_counted_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        count_steps(*arguments)


def test_grid_has_every_combination_once():
    candidates = hyperparameter_grid([16, 32], [5e-5, 4e-5, 3e-5, 2e-5], [2, 3, 4], [1])
    assert len({hyperparameters.name for hyperparameters in candidates}) == 24
    assert candidates[0].name == "batch16_lr5e-05_epochs2_seed1"
    assert len(hyperparameter_grid([16, 16], [5e-5, 0.00005], [2, 2.0], [1])) == 1


def test_pattern_of_reinitialised_top_layers():
    config: BertConfig = tiny_config(num_hidden_layers=4)
    assert fresh_variables(config, 0) == ""
    assert fresh_variables(config, 2) == "bert/pooler/.*|bert/encoder/layer_2/.*|bert/encoder/layer_3/.*"
    both = re.compile(fresh_variables(config, 1, reset_head=True))
    for name in ("output_weights", "output_bias", "cls/squad/output_bias", "bert/encoder/layer_3/output/dense/bias"):
        assert both.fullmatch(name)
    assert not both.fullmatch("cls/predictions/output_bias")
    with pytest.raises(InputError, match="--reinit_layers is 5"):
        fresh_variables(config, 5)


def run(folder, seeds, trained, resume_settings=None, fail_at=None, **options):
    def train(hyperparameters, trial_folder):
        if hyperparameters.seed == fail_at:
            raise KeyboardInterrupt
        trained.append(hyperparameters.seed)
        assert trial_folder.endswith(f"trials/{hyperparameters.name}")
        return {"step": 9, "loss": 1.0, "accuracy": SCORES[hyperparameters.seed]}

    candidates = [Hyperparameters(8, 1e-4, 2, seed) for seed in seeds]
    table = TrialTable(str(folder), "accuracy")
    return trials.run_trials(candidates, table, resume_settings or {"task": "a"}, train, **options)


def test_finished_trials_are_not_repeated_after_an_interruption(tmp_path, capsys):
    trained = []
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, (1, 2, 3), trained, fail_at=3)
    best = run(tmp_path, (1, 2, 3), trained)
    assert trained == [1, 2, 3]
    assert (best["seed"], best["accuracy"]) == (2, 0.75)
    rows = [json.loads(line) for line in (tmp_path / "trials.jsonl").read_text().splitlines()]
    assert [row["seed"] for row in rows] == [1, 2, 3]
    (summary,) = TrialTable(str(tmp_path), "accuracy").summary()
    assert summary["mean accuracy"] == pytest.approx(0.65)
    assert summary["deviation"] == pytest.approx(0.1323, abs=1e-4)
    assert "Best trial: batch8_lr0.0001_epochs2_seed2 (accuracy 0.75)" in capsys.readouterr().err


def test_checkpoints_that_a_killed_run_left_are_removed(tmp_path):
    run(tmp_path, (1, 2), [])
    table = TrialTable(str(tmp_path), "accuracy")
    folders = [tmp_path / "trials" / row["trial"] for row in table.rows()]
    for folder in folders:
        saver.CheckpointSaver(str(folder), 1).save(9, {"global_step": np.int64(9)})
    run(tmp_path, (1, 2), [])
    assert [saver.latest_checkpoint(str(folder)) is None for folder in folders] == [True, False]


def test_trials_of_other_settings_are_refused(tmp_path):
    run(tmp_path, (1,), [])
    with pytest.raises(InputError, match="has trials with other settings or data"):
        run(tmp_path, (1, 2), [], resume_settings={"task": "b"})
    trained = []
    run(tmp_path, (1, 2), trained, resume_settings={"task": "b"}, allow_changed_settings=True)
    assert trained == [2]
