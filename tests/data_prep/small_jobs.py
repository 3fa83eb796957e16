"""Jobs without real work, in a module that workers can import quickly."""

import os
import pathlib
import signal
import time


def job(path, amount, seconds, advance):
    """Reports progress of `amount`, and takes `seconds`."""
    advance(amount)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        advance(0)
        time.sleep(0.01)
    with open(pathlib.Path(path).parent.parent / "done", "a") as writer:
        writer.write(f"{amount}\n")
    return {"amount": amount}


def dying_job(path, amount, seconds, advance):
    advance(amount)
    # As if the process had been killed inside `advance`.
    cells = dict(zip(advance.__code__.co_freevars, advance.__closure__, strict=True))
    cells["progress"].cell_contents.get_lock().acquire()
    os.kill(os.getpid(), signal.SIGKILL)
