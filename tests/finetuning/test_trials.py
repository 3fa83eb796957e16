import numpy as np
import pytest

from bert_tf.checkpoints import saver
from bert_tf.finetuning import trials
from bert_tf.finetuning.finetuning_config import FinetuningConfig, TrialsConfig
from bert_tf.finetuning.trials import TrialTable
from bert_tf.training.settings import TrainingConfig
from tests.conftest import assert_refused

SCORES = {1: 0.5, 2: 0.75, 3: 0.7}


def settings(batch_size=32, **others):
    return FinetuningConfig(training=TrainingConfig(train_batch_size=batch_size, seed=1), **others)


def test_steps_are_counted_as_the_original_counts_them():
    for config, examples, steps in (
        (settings(), 3668, (343, 34)),
        (settings(num_train_steps=500), 3668, (500, 50)),
        (settings(num_train_steps=1), 5, (1, 0)),
    ):
        optimizer = config.for_steps(examples).optimizer
        assert (optimizer.num_train_steps, optimizer.num_warmup_steps) == steps
    assert_refused(r"5 examples .* --train_batch_size=32", settings().for_steps, 5)


def test_a_sweep_has_every_combination_once():
    trials = TrialsConfig(True, (16, 32), (5e-5, 4e-5, 3e-5, 2e-5), (2, 3, 4))
    candidates = settings(trials=trials).candidates()
    assert len({config.trial_name for config in candidates}) == 24
    assert candidates[0].trial_name == "batch16_lr5e-05_epochs2_seed1"
    assert candidates[0].replace(do_train=True).evaluates_while_training
    same = TrialsConfig(True, (16, 16), (5e-5, 0.00005), (2, 2.0))
    assert [config.trial_name for config in settings(trials=same).candidates()] == ["batch16_lr5e-05_epochs2_seed1"]
    seeds = settings(trials=TrialsConfig(num_restarts=2)).candidates()
    assert [config.trial_name for config in seeds] == [f"batch32_lr5e-05_epochs3_seed{seed}" for seed in (1, 2)]


def run(directory, count, trained, resume_settings=None, fail_at=None, **options):
    def train(config):
        seed = config.training.seed
        if seed == fail_at:
            raise KeyboardInterrupt
        trained.append(seed)
        assert config.training.output_dir.endswith(f"trials/{config.trial_name}")
        return {"step": 9, "loss": 1.0, "accuracy": SCORES[seed]}

    candidates = settings(8, trials=TrialsConfig(num_restarts=count), **options).candidates()
    table = TrialTable(str(directory), "accuracy")
    return trials.run_trials(candidates, table, resume_settings or {"task": "a"}, train)


def test_finished_trials_are_not_repeated_after_an_interruption_and_the_best_checkpoint_is_kept(tmp_path, capsys):
    trained = []
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, 3, trained, fail_at=3)
    best = run(tmp_path, 3, trained)
    assert trained == [1, 2, 3]
    assert best.endswith("seed2")
    table = TrialTable(str(tmp_path), "accuracy")
    assert [row["seed"] for row in table.rows()] == [1, 2, 3]
    (summary,) = table.summary()
    assert summary["mean accuracy"] == pytest.approx(0.65)
    assert summary["deviation"] == pytest.approx(0.1323, abs=1e-4)
    assert "Best trial: batch8_lr5e-05_epochs3_seed2 (accuracy 0.75)" in capsys.readouterr().err

    directories = [str(tmp_path / "trials" / row["trial"]) for row in table.rows()]
    for directory in directories:  # as if the run had been killed before it removed them
        saver.CheckpointSaver(directory, 1).save(9, {"global_step": np.int64(9)})
    run(tmp_path, 3, trained)
    assert [saver.latest_checkpoint(directory) is None for directory in directories] == [True, False, True]


def test_trials_of_other_settings_are_refused(tmp_path):
    run(tmp_path, 1, [])
    assert_refused("has trials with other settings or data", run, tmp_path, 2, [], resume_settings={"task": "b"})
    trained = []
    run(tmp_path, 2, trained, resume_settings={"task": "b"}, allow_changed_settings=True)
    assert trained == [2]
