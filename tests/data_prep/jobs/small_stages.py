"""Stages without real work, in a module that workers import fast."""

import dataclasses
import os
import signal
import time

from data_prep.jobs import workers


@dataclasses.dataclass(frozen=True)
class Stage(workers.Stage):
    """Jobs that report an amount, and take some seconds each if `seconds` is given."""

    folder: str
    amounts: tuple[int, ...]
    seconds: float = 0.0

    @property
    def names(self):
        return [f"job-{i}" for i in range(len(self.amounts))]

    def run(self, job, advance):
        advance(self.amounts[job])
        end = time.monotonic() + self.seconds
        while time.monotonic() < end:
            advance(0)
            time.sleep(0.01)
        return {"amount": self.amounts[job]}


class StageOfTheDying(Stage):
    def run(self, job, advance):
        advance(self.amounts[job])
        # As if it had been killed inside `advance`.
        cells = dict(zip(advance.__code__.co_freevars, advance.__closure__, strict=True))
        cells["progress"].cell_contents.get_lock().acquire()
        os.kill(os.getpid(), signal.SIGKILL)
