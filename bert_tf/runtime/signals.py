"""SIGTERM and Ctrl-C: ends a long job after the current step, and ends the programs that the job has started."""

import contextlib
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence

from bert_tf.runtime import errors
from bert_tf.runtime.messages import say

# Seconds between two checks whether a called program has ended.
_POLL_SECONDS = 0.02


@contextlib.contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Yields a list that collects SIGTERM and the first Ctrl-C. These signals do not end the program.

    Python delivers signals to its main thread only. In other threads, such as threads of a notebook's widgets or of a
    server, the list stays empty and signal handling is unchanged.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def receive(number: int, frame: object) -> None:
        received.append(number)
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, previous[signal.SIGINT])
            say("\nStopping after this step. Press Ctrl-C again to stop at once, without saving.")

    previous = {number: signal.signal(number, receive) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def call(command: Sequence[str], log: str, name: str) -> None:
    """Runs another program until it ends. SIGTERM or Ctrl-C to this process also ends the other program.

    Args:
      command: the program and its arguments.
      log: the local file to which the program's output is appended.
      name: the program's name in messages.

    Raises:
      InputError: if the exit status is not 0; the message includes the end of the log.
      KeyboardInterrupt: after SIGTERM or Ctrl-C, once the program has ended.
    """
    # If a handler raised an exception while Popen starts the process, the process would be lost.
    with stop_signals() as received, open(log, "ab") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        # `wait` would miss a signal that arrives just before it blocks, or that another thread receives.
        while process.poll() is None:
            if received:
                process.terminate()
                process.wait()
            time.sleep(_POLL_SECONDS)
    if received:
        raise KeyboardInterrupt
    if process.returncode:
        with open(log, encoding="utf-8", errors="replace") as reader:
            end = reader.read().replace("\r", "\n").splitlines()[-6:]
        message = f"{name} ended with exit status {process.returncode}. The end of {log}:"
        raise errors.InputError("\n  ".join([message, *end]))
