"""Tests MultiWorkerMirroredStrategy with real processes on the loopback interface."""

import functools
import re
import signal
import time
from unittest import mock

import pytest
import tensorflow as tf

from benchmarks.local_cluster import worker_configs
from bert_tf.checkpoints import saver
from bert_tf.distribution import strategies
from bert_tf.training import log
from tests import programs
from tests.conftest import assert_close, tensors_of
from tests.pretraining.test_run_pretraining import flags

pytestmark = pytest.mark.plain


@pytest.fixture
def files(tmp_path):
    model = programs.write_model_files(tmp_path, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return *model, programs.write_pretraining_data(tmp_path / "data.tfrecord")


def pretrain(files, directory, *more, **values):
    """Returns the command of a worker."""
    given = flags(files, directory, **values)
    return ["run_pretraining.py", "--do_train", "--distribution_strategy=multi_worker", *given, *more]


def start_workers(*commands):
    """Starts a cluster with one worker for each command."""
    return [
        programs.start(*command, environment={"TF_CONFIG": config})
        for command, config in zip(commands, worker_configs(len(commands)), strict=True)
    ]


def finish(workers, expect=0, expected_text=""):
    """Waits until the workers have ended with this status, without a traceback. Returns the first worker's output."""
    outputs = [worker.communicate(timeout=1000)[0] for worker in workers]
    for worker, output in zip(workers, outputs, strict=True):
        assert worker.returncode == expect, output[-3000:]
        assert expected_text in output, output[-3000:]
        assert "Traceback" not in output
        assert not re.search(r"^[IW]\d{4} ", output, re.MULTILINE), output[-3000:]  # TensorFlow's own lines
    return outputs[0]


def kill(worker):
    worker.kill()
    worker.communicate()


def newest_step(directory):
    """Returns the step of the newest checkpoint; 0 if there is none."""
    newest = saver.latest_checkpoint(str(directory))
    return int(newest.rpartition("-")[2]) if newest else 0


def wait_for_step(directory, workers, after=0):
    """Waits until the workers have written a checkpoint of a step later than `after`."""
    while newest_step(directory) <= after:
        assert all(worker.poll() is None for worker in workers), workers[0].communicate()[0][-3000:]
        time.sleep(0.05)


def test_two_and_three_workers_equal_one_also_when_some_are_lost(files, tmp_path):
    values = {"num_train_steps": 100, "save_checkpoints_steps": 10, "log_steps": 10, "learning_rate": 1e-4}
    values |= {"train_batch_size": 12, "max_eval_steps": 6}  # some of the 40 examples are evaluated twice
    programs.run("run_pretraining.py", *flags(files, tmp_path / "one", **values), "--do_train", "--do_eval")
    command = functools.partial(pretrain, files, tmp_path / "together", **values)
    workers = start_workers(*[command("--worker_timeout=6")] * 2)
    wait_for_step(tmp_path / "together", workers)
    kill(workers[1])
    finish(
        workers[:1], expect=1, expected_text="error: worker 1 has ended, or has not answered within --worker_timeout."
    )
    reached = newest_step(tmp_path / "together")

    workers = start_workers(*[command()] * 3)
    wait_for_step(tmp_path / "together", workers, after=reached)
    workers[1].send_signal(signal.SIGTERM)  # all stop after the same step, and the chief saves it
    output = finish(workers, expect=1, expected_text="which is saved")
    assert "Warning: replicas was 2, and is 3 now." in output
    assert f"{tmp_path / 'together' / 'model.ckpt-'}{reached}" in output
    assert reached < newest_step(tmp_path / "together") < 100
    evaluating = start_workers(*[command("--do_eval")] * 2)
    finish(
        evaluating[1:], expected_text="Trained to step 100. The first worker writes checkpoints, metrics and results."
    )
    finish(evaluating[:1])
    results = [
        dict(line.split(" = ") for line in (tmp_path / directory / "eval_results.txt").read_text().splitlines())
        for directory in ("one", "together")
    ]
    assert results[0].keys() == results[1].keys()
    for name, value in results[0].items():
        assert float(results[1][name]) == pytest.approx(float(value), rel=1e-4), name

    one, together = tensors_of(tmp_path / "one"), tensors_of(tmp_path / "together")
    assert together["global_step"] == 100
    for name, value in one.items():
        assert_close(together[name], value, 1e-5, name)
    assert [line["step"] for line in log.read_metrics(str(tmp_path / "together"))] == list(range(10, 101, 10))


def test_workers_with_other_flags_and_files_do_not_start(files, tmp_path):
    (config, vocab, data), out = files, tmp_path / "out"
    same = pretrain(files, out)
    # These settings change when workers synchronise, but not the weights.
    held_out = [f"--eval_input_file={data}", "--eval_batch_size=8", "--use_best_checkpoint", "--log_steps=7"]
    workers = start_workers(same, [*same, *held_out, f"--output_dir={tmp_path / 'own'}"])
    output = finish(workers, expect=1, expected_text="evaluation 1 is")
    assert "log_steps is 100 on worker 0; 7 on worker 1" in output
    assert not (tmp_path / "own").exists() and not out.exists()

    workers = start_workers(same, pretrain((config, vocab, tmp_path / "missing"), out))
    missing = f"--input_file: '{tmp_path / 'missing'}' matches no file"
    assert f"error: worker 1 has ended: {missing}" in finish(workers[:1], expect=1)
    assert f"error: {missing}" in finish(workers[1:], expect=1)

    (tmp_path / "train.tsv").write_text("text\tlabel\n" + "a b\tx\nc d\ty\n" * 4)
    classify = ["run_classifier.py", "--do_train", "--distribution_strategy=multi_worker", "--task_name=text"]
    classify += [f"--data_dir={tmp_path}", f"--output_dir={out}", f"--vocab_file={vocab}", "--max_seq_length=8"]
    classify.append(f"--bert_config_file={config}")
    (tmp_path / "larger").mkdir()
    larger, _ = programs.write_model_files(tmp_path / "larger", hidden_size=24)
    other = [*classify, f"--bert_config_file={larger}", "--train_batch_size=8"]
    workers = start_workers([*classify, "--train_batch_size=4"], other)
    output = finish(workers, expect=1, expected_text="error: the workers do not agree:\n")
    assert "train_batch_size is 4 on worker 0; 8 on worker 1\n" in output
    assert "bert_config: hidden_size is 12 on worker 0; 24 on worker 1\n" in output
    assert not (out / "run.json").exists()


@pytest.mark.slow  # a minute each
@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGTSTP])  # SIGTSTP stops the worker
def test_whichever_worker_is_lost_in_whatever_way_the_others_end(files, tmp_path, lost, way):
    values = {"num_train_steps": 9000, "train_batch_size": 12, "worker_timeout": 3, "save_checkpoints_steps": 10}
    workers = start_workers(*[pretrain(files, tmp_path / "out", **values)] * 3)
    wait_for_step(tmp_path / "out", workers)
    workers[lost].send_signal(way)
    output = finish(workers[:lost] + workers[lost + 1 :], expect=1, expected_text=" has ended, or has not answered")
    assert f"Start all workers again. The run in {tmp_path / 'out'} resumes from step " in output
    if way == signal.SIGTSTP:  # the stopped worker can't continue alone
        workers[lost].send_signal(signal.SIGCONT)
        finish([workers[lost]], expect=1, expected_text=" has ended, or has not answered within --worker_timeout.")
    else:
        kill(workers[lost])


_FULL_DISK = """
import errno, os, runpy, sys
from bert_tf.checkpoints import saver

def write(prefix, tensors, real=saver.write_checkpoint):
    if prefix.endswith("-20"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return real(prefix, tensors)

saver.write_checkpoint = write
sys.argv = ["run_pretraining.py", *sys.argv[1:]]
runpy.run_path("run_pretraining.py", run_name="__main__")
"""


@pytest.mark.slow  # half a minute
def test_a_full_disk_on_one_worker_ends_all_and_one_worker_may_go_on_alone(files, tmp_path):
    command = pretrain(files, tmp_path / "out", num_train_steps=40, save_checkpoints_steps=10)
    workers = start_workers(["-c", _FULL_DISK, *command[1:]], command)
    message = "--output_dir: the checkpoint of step 20 can't be written to"
    assert f"error: {message}" in finish(workers[:1], expect=1)
    output = finish(workers[1:], expect=1)
    assert f"error: worker 0 has ended: {message}" in output and "resumes from step 10." in output
    output = finish(start_workers(command))  # a cluster of one
    assert "Warning: replicas was 2, and is 1 now." in output
    assert tensors_of(tmp_path / "out")["global_step"] == 40


def test_one_process_of_a_cluster_is_the_chief():
    jobs = tf.train.ClusterSpec({"chief": ["a:1"], "worker": ["b:1", "c:1"]})
    for job, i in (("chief", 0), ("worker", 0), ("worker", 1)):
        strategy = mock.create_autospec(tf.distribute.MultiWorkerMirroredStrategy, instance=True)
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(jobs, task_type=job, task_id=i)
        strategy.cluster_resolver = resolver
        assert strategies.is_chief(strategy) == (job == "chief")
