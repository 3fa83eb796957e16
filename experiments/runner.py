"""Runs the pieces that are left. Any number of processes, on any machines that share the folder, may do so at once.

WORK_DIR/pieces/NAME/   what the program writes, and log.txt (what it prints), lock (is locked while it runs), and
                        done.json (settings, seconds, scores): the piece is finished if it is there
WORK_DIR/features/      features of frozen models, which many runs read
WORK_DIR/tables/        the tables, and NAME.SCALE.json: the settings with which each cell was begun
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, TypedDict

from bert_tf.runtime import claims, files, json_files
from bert_tf.runtime.files import InputError
from bert_tf.runtime.program import say, say_once
from bert_tf.tokenization.vocabulary import load_vocab
from experiments.assembly import Cell, bert_config
from experiments.pieces import Piece, in_order

_POLL_SECONDS = 5.0
_PYTHON = (sys.executable, "-m")
_DEVICE_FLAGS = ("--distribution_strategy", "--use_tpu", "--tpu_name", "--tpu_zone", "--gcp_project", "--master")
_DEVICE_FLAGS += ("--num_tpu_cores",)
# The ending of the file with the scores of a data set -> what stands before the names of these scores.
_SPLITS = {"": "", "_test": "test_", "_dev_mismatched": "mismatched_"}


class Done(TypedDict):
    """What `done.json` holds, beside `settings`."""

    seconds: float
    resumed: bool
    scores: dict[str, Any]


class Runner:
    """Runs pieces.

    Args:
      work_dir: the folder of all pieces and tables.
      device_flags: further flags of training, which say where it runs and change no result.
      launcher: what starts a program; its module and its flags are put behind it.

    Raises:
      InputError: if a device flag may change a result, which no run's name would show.
    """

    def __init__(self, work_dir: str, device_flags: Sequence[str] = (), launcher: Sequence[str] = _PYTHON) -> None:
        self._pieces_dir = os.path.join(work_dir, "pieces")
        self._device_flags, self._launcher = list(device_flags), list(launcher)
        if wrong := [flag for flag in device_flags if flag.partition("=")[0] not in _DEVICE_FLAGS]:
            known = ", ".join(_DEVICE_FLAGS)
            raise InputError(f"--device_flags: {wrong[0]} does not say where training runs, as these do: {known}.")

    def path(self, piece: Piece, name: str = "") -> str:
        """A file in the folder of a piece."""
        return os.path.join(self._pieces_dir, piece.name, name)

    def done(self, piece: Piece) -> Done | None:
        """What is kept of a finished piece; None if it isn't finished."""
        return _kept(self.path(piece, "done.json"), Done, self.path(piece))

    def is_running(self, piece: Piece) -> bool:
        """Whether a process runs the piece now."""
        if not files.exists(self.path(piece)):
            return False
        with claims.locked(self.path(piece, "lock")) as lock:
            return lock is None

    def command(self, piece: Piece) -> list[str]:
        """The module of a piece and its arguments."""
        trains = piece.kind in ("pretraining", "finetuning")
        features = os.path.join(os.path.dirname(self._pieces_dir), "features")
        more = [f"--features_dir={features}"] if "feature_layers" in piece.flags else []
        return piece.command(self._pieces_dir) + more + (self._device_flags if trains else [])

    def check(self, pieces: Sequence[Piece]) -> None:
        """Checks before any run that what finished runs left can be read, and that the programs have all flags.

        Raises:
          InputError: names the file or the flag.
        """
        flags: dict[str, dict[str, None]] = {}
        for piece in in_order(pieces):
            if not self.done(piece):
                module, *given = self.command(piece)
                flags.setdefault(module, {}).update(dict.fromkeys(given))
        for module, given in flags.items():
            command = [*self._launcher, module, *given, "--only_check_args"]
            checked = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
            if checked.returncode:
                raise InputError(f"{module} can't take the flags of the table and the scale: {checked.stderr.strip()}")

    def run(self, pieces: Sequence[Piece]) -> None:
        """Runs pieces and those they need; what other processes run is waited for.

        Raises:
          InputError: if pieces failed, after all others have been run; names each and the last lines of its program.
        """
        left, failed = in_order(pieces), dict[str, str]()
        while left:
            waiting = []
            for piece in left:
                if any(needed.name in failed for needed in piece.needs):
                    failed[piece.name] = f"{piece.name} needs one that failed, and was not begun."
                elif not all(self.done(needed) for needed in piece.needs):
                    waiting.append(piece)
                elif not self.done(piece):
                    try:
                        waiting += [] if self._claim_and_run(piece) else [piece]
                    except InputError as error:
                        say(f"error: {error}")
                        failed[piece.name] = str(error)
            if len(waiting) == len(left):
                say_once("Waiting for runs of other processes.")
                time.sleep(_POLL_SECONDS)
            left = waiting
        if failed:
            raise InputError("\n".join([*failed.values(), "Finished runs stay; run the command again to go on."]))

    def _claim_and_run(self, piece: Piece) -> bool:
        """Runs a piece; false if another process runs it."""
        files.make_folder(self.path(piece))
        with claims.locked(self.path(piece, "lock")) as lock:
            if lock is not None and not self.done(piece):
                self._run_claimed(piece, lock.fileno())
            return lock is not None

    def _run_claimed(self, piece: Piece, lock: int) -> None:
        log, command, start = self.path(piece, "log.txt"), self.command(piece), time.monotonic()
        free = shutil.disk_usage(self.path(piece)).free
        if free < piece.disk:
            sizes = f"{piece.disk / 1e9:.2f} GB are needed, but {free / 1e9:.2f} GB are free"
            raise InputError(f"{piece.name}: the disk of --work_dir is full: {sizes}. Make room, and run it again.")
        if piece.model is not None:
            vocab = load_vocab(piece.shown("vocab_file", self._pieces_dir))
            config = bert_config(piece.model, len(vocab))
            files.write_json(self.path(piece, "bert_config.json"), config.to_dict())
        resumed = files.exists(log)
        say(f"{'Resuming' if resumed else 'Running'} {piece.name}: {command[0]} (see {log})")
        if status := _call([*self._launcher, *command], log, lock):
            lines = files.open_file(log).read().replace("\r", "\n").splitlines()[-6:]
            raise InputError("\n  ".join([f"{piece.name} ended with exit status {status}. The end of {log}:", *lines]))
        done = {"settings": piece.settings, "seconds": round(time.monotonic() - start, 1), "resumed": resumed}
        files.write_json(self.path(piece, "done.json"), {**done, "scores": self._scores(piece)})

    def _scores(self, piece: Piece) -> dict[str, float]:
        """What a program has written, with the names of `_SPLITS`."""
        if piece.kind == "pretraining":
            lines = files.read_text(self.path(piece, "metrics.jsonl"), "--work_dir").splitlines()
            sets = {"": next((json.loads(line) for line in reversed(lines) if '"kind": "eval"' in line), {})}
        else:
            paths = {prefix: self.path(piece, f"eval_results{suffix}.json") for suffix, prefix in _SPLITS.items()}
            sets = {x: json_files.read(path, "--work_dir", dict) for x, path in paths.items() if files.exists(path)}
        scores = ((prefix + name, value) for prefix, of_set in sets.items() for name, value in of_set.items())
        return {name: value for name, value in scores if isinstance(value, int | float)}


def record_beginning(path: str, cells: Sequence[Cell], allow_changes: bool) -> None:
    """Keeps the settings with which the cells of a table are begun, and compares those of cells that were begun before.

    Raises:
      InputError: if they have changed, and `allow_changes` is not set; names the cell, the setting and both values.
    """
    before = _kept(path, dict[str, dict[str, Any]], path) or {}
    now = json.loads(json.dumps({cell.name: cell.piece.all_settings() for cell in cells}))
    for name in [] if allow_changes else sorted(before.keys() & now.keys()):
        for key in now[name] | before[name]:
            old, new = (settings[name].get(key, "not given") for settings in (before, now))
            if old != new:
                raise InputError(
                    f"This experiment has changed since its runs began: {name}: {key} was {old!r} and is now {new!r}. "
                    "Change it back, or give --allow_changes to run what is new; finished runs stay."
                )
    files.write_json(path, before | now)


def _kept(path: str, kind: Any, remedy: str) -> Any:
    """What the harness has written into a file; None if there is none. Without `remedy`, it is written anew."""
    try:
        return json_files.read(path, "--work_dir", kind) if files.exists(path) else None
    except InputError as error:
        raise InputError(f"{error} Or remove {remedy}; it is made anew by the next run.") from None


def _call(command: list[str], log: str, lock: int) -> int:
    """Runs a program, and returns its exit status. SIGTERM and Ctrl-C end it too.

    It inherits the lock: one that outlives its harness keeps the claim.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    streams = {"stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT}
    with open(log, "ab") as output, subprocess.Popen(command, stdout=output, pass_fds=[lock], **streams) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.terminate()  # leaving `with` waits for its end
            raise
