"""Runs the pieces that are left. Any number of processes, on any machines that share the folder, may do so at once.

WORK_DIR/pieces/NAME/   what the program writes, and log.txt (what it prints), lock (is locked while it runs), and
                        done.json (what for, settings, seconds, scores): the piece is finished if it is there
WORK_DIR/features/      features of frozen models, which many runs read
WORK_DIR/tables/        the tables, and NAME.SCALE.json: the settings with which each cell was begun
"""

import os
import sys
import time
from collections.abc import Sequence
from typing import Any, TypedDict

from bert_tf.config import BertConfig
from bert_tf.runtime import claims, differences, files, json_files, program
from bert_tf.runtime.files import InputError
from bert_tf.tokenization.vocabulary import load_vocab
from experiments.assembly import Cell
from experiments.pieces import Piece, in_order

_POLL_SECONDS = 5.0
_PYTHON = (sys.executable, "-m")
_DEVICE_FLAGS = ["distribution_strategy", "use_tpu", "tpu_name", "tpu_zone", "gcp_project", "master", "num_tpu_cores"]
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
        self._work_dir, self._pieces_dir = work_dir, os.path.join(work_dir, "pieces")
        self._device_flags, self._launcher = list(device_flags), list(launcher)
        known = [f"--{name}" for name in _DEVICE_FLAGS]
        if wrong := [flag for flag in device_flags if flag.partition("=")[0] not in known]:
            raise InputError(f"--device_flags: {wrong[0]} does not say where training runs, as {', '.join(known)}.")

    def path(self, piece: Piece, name: str = "") -> str:
        """A file in the folder of a piece."""
        return os.path.join(self._pieces_dir, piece.name, name)

    def done(self, piece: Piece) -> Done | None:
        """What is kept of a finished piece; None if it isn't finished."""
        return _kept(self.path(piece, "done.json"), Done, self.path(piece))

    def state(self, piece: Piece) -> str:
        """Whether a piece is finished, or running (by any process), or left."""
        return "finished" if self.done(piece) else "running" if claims.is_locked(self.path(piece, "lock")) else "left"

    def bytes_left(self, piece: Piece) -> float:
        """What a piece is expected to add to what is in its folder."""
        return max(0.0, piece.disk - files.bytes_in(self.path(piece)))

    def command(self, piece: Piece) -> list[str]:
        """The module of a piece and its arguments."""
        trains = piece.kind in ("pretraining", "finetuning")
        more = [f"--features_dir={self._work_dir}/features"] if "feature_layers" in piece.flags else []
        return piece.command(self._pieces_dir) + more + (self._device_flags if trains else [])

    def check(self, pieces: Sequence[Piece]) -> None:
        """Checks before any run that what finished runs left can be read, and that the programs have all flags.

        Raises:
          InputError: names the file or the flag.
        """
        commands = [self.command(piece) for piece in in_order(pieces) if not self.done(piece)]
        for module in sorted({module for module, *_ in commands}):
            given = {flag: None for other, *flags in commands if other == module for flag in flags}
            program.check_arguments([*self._launcher, module, *given])

    def run(self, pieces: Sequence[Piece]) -> None:
        """Runs pieces and those they need; what other processes run is waited for.

        Raises:
          InputError: if pieces failed, after all others have been run; names each and the last lines of its program.
        """
        left, failed = [piece for piece in in_order(pieces) if not self.done(piece)], dict[str, str]()
        while left:
            waiting = []
            for piece in left:
                try:
                    if any(needed.name in failed for needed in piece.needs):
                        raise InputError(f"{piece} needs one that failed, and was not begun.")
                    if not self._claim_and_run(piece):
                        waiting.append(piece)
                except InputError as error:
                    program.say(f"error: {error}")
                    failed[piece.name] = str(error)
            if len(waiting) == len(left):
                program.say_once("Waiting for runs of other processes.")
                time.sleep(_POLL_SECONDS)
            left = waiting
        if failed:
            raise InputError("\n".join([*failed.values(), "Finished runs stay; run the command again to go on."]))

    def _claim_and_run(self, piece: Piece) -> bool:
        """Runs a piece if it isn't finished; false if it can't begin yet, or another process runs it."""
        if not all(map(self.done, piece.needs)):
            return False
        files.make_folder(self.path(piece))
        with claims.locked(self.path(piece, "lock")) as lock:
            if lock is not None and not self.done(piece):
                self._run_claimed(piece, lock.fileno())
            return lock is not None

    def _run_claimed(self, piece: Piece, lock: int) -> None:
        log, command, start = self.path(piece, "log.txt"), self.command(piece), time.monotonic()
        files.check_room(self.path(piece), self.bytes_left(piece), f"--work_dir: {piece}")
        if piece.model is not None:
            vocab = load_vocab(piece.shown(piece.flags["vocab_file"], self._pieces_dir))
            config = BertConfig.named(**{"vocab_size": len(vocab), **piece.model})
            files.write_json(self.path(piece, "bert_config.json"), config.to_dict())
        resumed = files.exists(log)
        program.say(f"{'Resuming' if resumed else 'Running'} {piece}: {command[0]} (see {log})")
        program.call([*self._launcher, *command], log, str(piece), [lock])  # if it outlives this, it keeps the claim
        done = {"used_for": piece.used_for, "settings": piece.settings, "resumed": resumed}
        done |= {"seconds": round(time.monotonic() - start, 1), "scores": self._scores(piece)}
        files.write_json(self.path(piece, "done.json"), done)

    def _scores(self, piece: Piece) -> dict[str, float]:
        """What a program has written, with the names of `_SPLITS`."""
        if piece.kind == "pretraining":
            lines = json_files.read_lines(self.path(piece, "metrics.jsonl"), "--work_dir", dict)
            sets = [("", line) for line in lines if line.get("kind") == "eval"][-1:]
        else:
            paths = [(prefix, self.path(piece, f"eval_results{suffix}.json")) for suffix, prefix in _SPLITS.items()]
            sets = [(x, json_files.read(path, "--work_dir", dict)) for x, path in paths if files.exists(path)]
        scores = [(prefix + name, value) for prefix, of_set in sets for name, value in of_set.items()]
        return {name: value for name, value in scores if isinstance(value, int | float)}


def record_beginning(path: str, cells: Sequence[Cell], allow_changes: bool) -> None:
    """Keeps the settings with which the cells of a table are begun, and compares those of cells that were begun before.

    Raises:
      InputError: if they have changed, and `allow_changes` is not set; names settings, both values and a cell.
    """
    old = _kept(path, dict[str, dict[str, Any]], path) or {}
    new = {cell.name: cell.piece.all_settings() for cell in cells}
    found = {text: cell for cell in reversed(old) if cell in new for text in differences.changes(old[cell], new[cell])}
    if found and not allow_changes:
        texts = differences.listed([f"{cell}: {text}" for text, cell in found.items()])
        advice = "Change it back, or give --allow_changes to run what is new; finished runs stay."
        raise InputError(f"This experiment has changed since its runs began, as in\n  {texts}\n{advice}")
    files.write_json(path, old | new)


def _kept(path: str, kind: Any, remedy: str) -> Any:
    """What the harness has written into a file; None if there is none. Without `remedy`, it is written anew."""
    try:
        return json_files.read(path, "--work_dir", kind) if files.exists(path) else None
    except InputError as error:
        raise InputError(f"{error} Or remove {remedy}; it is made anew by the next run.") from None
