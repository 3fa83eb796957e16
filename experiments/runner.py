"""Runs the unfinished runs one after the other.

WORK_DIR/runs/NAME/     outputs and messages (log.txt) of the program; after the end also done.json with settings,
                        seconds and scores
WORK_DIR/features/      features of frozen models, shared by many runs
WORK_DIR/tables/        the tables
"""

import json
import pathlib
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from bert_tf.config import BertConfig
from bert_tf.distribution.devices import DistributionConfig
from bert_tf.runtime import files, messages, signals
from bert_tf.runtime.files import InputError
from bert_tf.runtime.settings import flags_of
from bert_tf.text.vocabulary import load_vocab
from experiments.runs import THIS, Run, in_order
from experiments.schema import PROGRAMS, parse

_OTHER_FLAGS = ("worker_timeout", "allow_tf32", "deterministic")
_DEVICE_FLAGS = {name: field for name, field in flags_of(DistributionConfig).items() if name not in _OTHER_FLAGS}
# Suffix of a file eval_results*.json -> prefix for the names of its scores.
_SPLITS = {"": "", "_test": "test_", "_dev_mismatched": "mismatched_"}


class Runner:
    """Runs the programs of unfinished runs.

    Args:
      work_dir: The directory of all runs and tables.
      device_flags: Additional flags for training, which select devices and do not change results.
      launcher: The command that starts a program. The module and the flags of the program are appended.

    Raises:
      InputError: if a device flag could change results. The name of a run does not depend on device flags.
    """

    def __init__(
        self, work_dir: str, device_flags: Sequence[str] = (), launcher: Sequence[str] = (sys.executable, "-m")
    ) -> None:
        self._work_dir, self._device_flags, self._launcher = pathlib.Path(work_dir), [*device_flags], [*launcher]
        texts = dict(flag.removeprefix("--").partition("=")[::2] for flag in device_flags)
        parse(_DEVICE_FLAGS, {name: text or True for name, text in texts.items()}, "--device_flags")

    def done(self, run: Run) -> dict[str, Any] | None:
        """Returns the record of a finished run; None if it is not finished."""
        path = self._work_dir / "runs" / run.name / "done.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def command(self, run: Run) -> list[str]:
        """Returns the module of a run and its arguments."""
        directory = f"{self._work_dir}/runs/{run.name}"
        command = [run.module, *(argument.replace(THIS, directory) for argument in run.arguments)]
        if "feature_layers" in run.flags:
            command.append(f"--features_dir={self._work_dir}/features")
        return command + (self._device_flags if run.kind in ("pretraining", "finetuning") else [])

    def listing(self, runs: Iterable[Run]) -> str:
        """Returns one line per run, in execution order: state, command, and a cell that needs the run."""
        lines = [("finished" if self.done(run) else "left", run) for run in in_order(runs)]
        return "\n".join(f"{state:8}  python -m {' '.join(self.command(run))}  # {run}" for state, run in lines)

    def check(self, runs: Iterable[Run]) -> None:
        """Checks the settings of all unfinished runs.

        Raises:
          InputError: if a program would refuse the settings.
        """
        for run in in_order(runs):
            if not self.done(run):
                try:
                    PROGRAMS[run.module].check(run.texts, run.module)
                    if run.model is not None:
                        BertConfig.named(**run.model)
                except InputError as error:
                    raise InputError(str(error), str(run)) from None

    def run(self, runs: Iterable[Run]) -> str:
        """Executes the unfinished runs and the runs that they need.

        Returns:
          A message with the failed runs and the last lines of their output; empty if none failed.
        """
        failed: dict[str, str] = {}
        for run in in_order(runs):
            try:
                if any(file.run and file.run.name in failed for file in run.files):
                    raise InputError(f"{run} was skipped, because a run that it needs failed.")
                if not self.done(run):
                    self._run(run)
            except InputError as error:
                messages.say(f"error: {error}")
                failed[run.name] = str(error)
        advice = ["Finished runs are kept. Run the command again to continue."]
        return "\n".join([*failed.values(), *advice] if failed else [])

    def _run(self, run: Run) -> None:
        directory, command, start = self._work_dir / "runs" / run.name, self.command(run), time.monotonic()
        directory.mkdir(parents=True, exist_ok=True)
        if run.model is not None:
            vocab = load_vocab(run.flags["vocab_file"].path)
            config = BertConfig.named(**{"vocab_size": len(vocab), **run.model})
            files.write_json(str(directory / "bert_config.json"), config.to_dict())
        log = directory / "log.txt"
        resumed = log.exists()
        messages.say(f"{'Resuming' if resumed else 'Running'} {run}: {command[0]} (see {log})")
        signals.call([*self._launcher, *command], str(log), str(run))
        done = {"used_for": run.used_for, "settings": run.settings, "resumed": resumed}
        done |= {"seconds": round(time.monotonic() - start, 1), "scores": scores(directory, run.kind)}
        files.write_json(str(directory / "done.json"), done)


def scores(directory: pathlib.Path, kind: str) -> dict[str, int | float]:
    """Returns the scores that a program has written to metrics.jsonl (pre-training) or eval_results* (others)."""
    if kind == "pretraining":
        lines = map(json.loads, (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
        sets = {"": [line for line in lines if line["kind"] == "eval"][-1]}
    else:
        paths = {prefix: directory / f"eval_results{suffix}.json" for suffix, prefix in _SPLITS.items()}
        sets = {prefix: json.loads(path.read_text()) for prefix, path in paths.items() if path.exists()}
    all_scores = {prefix + name: value for prefix, of_set in sets.items() for name, value in of_set.items()}
    return {name: value for name, value in all_scores.items() if isinstance(value, int | float)}
