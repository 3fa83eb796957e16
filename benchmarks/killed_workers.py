"""Pre-trains with two workers twice, once undisturbed and once with kills at random steps, and compares the runs.

    python -m benchmarks.killed_workers --corpus='books/*.txt' --heldout=other.txt --work_dir=build/killed_workers

A kill sends SIGKILL to one of the workers. The other must exit with a message. Then both are restarted. The table shows
the losses of both runs on held-out text, and the line below it the largest difference between any two numbers that the
runs logged after the same step. When restarted with the same --work_dir, the benchmark continues where it stopped. With
the defaults each run takes about an hour of processor time.
"""

import os
import pathlib
import random
import subprocess
import sys
import time

from absl import app, flags

from benchmarks.local_cluster import worker_configs
from bert_tf.runtime import reporting
from bert_tf.training import log

_CORPUS = flags.DEFINE_string("corpus", None, "Text to train on.", required=True)
_HELDOUT = flags.DEFINE_string("heldout", None, "Text to evaluate on.", required=True)
_WORK_DIR = flags.DEFINE_string("work_dir", None, "Directory of the data and the runs.", required=True)
_SIZE = flags.DEFINE_string("model_size", "mini", "Released size of the model; mini has 4 layers.")
_LENGTH = flags.DEFINE_integer("max_seq_length", 64, "Length of the sequences.")
_BATCH_SIZE = flags.DEFINE_integer("train_batch_size", 32, "Examples per step of both workers together.")
_STEPS = flags.DEFINE_integer("steps", 2500, "Steps of each run.")
_KILLS = flags.DEFINE_integer("kills", 10, "Number of kills.")
_SEED = flags.DEFINE_integer("seed", 1, "Seed for choosing the steps and the workers of the kills.")
# Other logged values, such as times, differ between any two runs.
_MEASURED = ("loss", "masked_lm_loss", "masked_lm_accuracy", "next_sentence_loss", "next_sentence_accuracy")


def main(_: list[str]) -> None:
    directory = pathlib.Path(_WORK_DIR.value)
    directory.mkdir(parents=True, exist_ok=True)
    make_data(directory)
    dice = random.Random(_SEED.value)
    kills = [(step, dice.randrange(2)) for step in sorted(dice.sample(range(1, _STEPS.value), _KILLS.value))]
    run(directory, "undisturbed", [])
    run(directory, "killed", kills)
    runs = [log.read_metrics(str(directory / name)) for name in ("undisturbed", "killed")]
    print(f"Worker killed after step: {', '.join(f'{worker} after {step}' for step, worker in kills)}.")
    print(reporting.table(held_out_losses(*runs)))
    print(f"Largest difference of a logged value: {largest_difference(*runs):.2g}.")


def make_data(directory: pathlib.Path) -> None:
    """Makes a vocabulary, and the training and held-out records."""
    vocab = directory / "vocab.txt"
    if not vocab.exists():
        python("-m", "data_prep.build_vocab", f"--input_file={_CORPUS.value}", f"--output_file={vocab}")
    for text, name in ((_CORPUS.value, "train"), (_HELDOUT.value, "heldout")):
        records = directory / f"{name}.tfrecord"
        if not list(directory.glob(f"{name}.tfrecord*")):
            python(
                *("-m", "data_prep.create_pretraining_data", f"--input_file={text}", f"--output_file={records}"),
                *(f"--vocab_file={vocab}", f"--max_seq_length={_LENGTH.value}", "--max_predictions_per_seq=10"),
                *("--dupe_factor=5", "--split_sentences"),
            )


def python(*arguments: str) -> None:
    """Runs a Python command. A failure raises an error."""
    subprocess.run([sys.executable, *arguments], check=True)


def run(directory: pathlib.Path, name: str, kills: list[tuple[int, int]]) -> None:
    """Trains with two workers until the last step. Skips kills that an earlier start of the benchmark has reached."""
    output = directory / name
    ahead = [kill for kill in kills if kill[0] > logged_step(output)]
    for step, victim in (*ahead, (None, None)):
        if logged_step(output) >= _STEPS.value:
            return
        workers = start(directory, output)
        if step is None:
            if max(worker.wait() for worker in workers):
                sys.exit(f"The run {name} failed.")
            return
        while logged_step(output) < step:
            if any(worker.poll() is not None for worker in workers):
                sys.exit(f"The run {name} ended before step {step}.")
            time.sleep(0.1)
        workers[victim].kill()
        statuses = [worker.wait() for worker in workers]
        if statuses[1 - victim] != 1:
            sys.exit(f"After the kill of worker {victim}, the other ended with exit status {statuses[1 - victim]}.")


def logged_step(output: pathlib.Path) -> int:
    """Returns the newest step that a run has logged."""
    if not (output / "metrics.jsonl").exists():
        return 0
    return max((line["step"] for line in log.read_metrics(str(output))), default=0)


def start(directory: pathlib.Path, output: pathlib.Path) -> list[subprocess.Popen]:
    """Starts both workers of a run, on separate cores if there are two."""
    command = [
        *(
            "run_pretraining.py",
            f"--input_file={directory / 'train.tfrecord*'}",
            f"--output_dir={output}",
            "--do_train",
        ),
        *(
            f"--vocab_file={directory / 'vocab.txt'}",
            f"--model_size={_SIZE.value}",
            f"--max_seq_length={_LENGTH.value}",
        ),
        *("--max_predictions_per_seq=10", f"--train_batch_size={_BATCH_SIZE.value}", "--learning_rate=5e-4"),
        *(f"--num_train_steps={_STEPS.value}", f"--num_warmup_steps={_STEPS.value // 10}", "--bias_correction"),
        *("--save_checkpoints_steps=50", "--log_steps=10", "--keep_checkpoint_max=2", "--worker_timeout=60"),
        *(f"--eval_input_file={directory / 'heldout.tfrecord*'}", "--eval_batch_size=64", "--max_eval_steps=20"),
        *(f"--eval_steps={max(1, _STEPS.value // 10)}", "--distribution_strategy=multi_worker"),
    ]
    cores = sorted(os.sched_getaffinity(0))
    workers = []
    for index, config in enumerate(worker_configs(2)):
        # A process inherits the cores of the thread that starts it.
        os.sched_setaffinity(0, [cores[index % len(cores)]])
        workers.append(subprocess.Popen([sys.executable, *command], env={**os.environ, "TF_CONFIG": config}))
    os.sched_setaffinity(0, cores)
    return workers


def held_out_losses(*runs: list[dict]) -> list[dict[str, object]]:
    """Returns the rows of the table: the step of each evaluation, and the loss of each run."""
    whole, killed = ({line["step"]: line["loss"] for line in lines if line["kind"] == "eval"} for lines in runs)
    return [{"step": step, "undisturbed": loss, "killed": killed.get(step)} for step, loss in whole.items()]


def largest_difference(*runs: list[dict]) -> float:
    """Returns the largest difference between numbers that two runs logged under the same name after the same step."""
    values = [
        {(line["kind"], line["step"], name): line[name] for line in lines for name in _MEASURED if name in line}
        for lines in runs
    ]
    if values[0].keys() != values[1].keys():
        sys.exit(f"Only one run has logged: {sorted(values[0].keys() ^ values[1].keys())[:5]}")
    return max(abs(value - values[1][name]) for name, value in values[0].items())


if __name__ == "__main__":
    app.run(main)
