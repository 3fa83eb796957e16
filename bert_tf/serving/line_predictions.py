"""Answers JSON lines with an exported model as soon as they arrive, in their order."""

import contextlib
import json
import queue
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import IO, Any

from bert_tf.runtime import files, json_files, program, reporting
from bert_tf.runtime.files import InputError
from bert_tf.serving.answering import AnsweringModel

# The lines of so many batches are sorted by length together.
_SORTED_BATCHES = 16


def answer_lines(
    model: AnsweringModel, lines: Iterable[bytes], writer: IO[str], batch_size: int, input_bytes: int = 0
) -> tuple[int, int]:
    """Writes an answer for each line that isn't empty, as soon as it is computed.

    Args:
      model: the model.
      lines: JSON; more lines are read while earlier ones are answered.
      writer: the file of the answers.
      batch_size: the number of lines that are computed together.
      input_bytes: the bytes of all lines, from which the remaining time is estimated; 0 if nobody knows.

    Returns:
      The number of lines that couldn't be used, and the number of all lines.

    Raises:
      InputError: if reading fails; the lines before are answered.
    """
    total = failed = read_bytes = 0
    with reporting.progress_bar(None, "predict", unit="line") as bar:
        for available in _available(lines, batch_size * _SORTED_BATCHES):
            rows = [_parsed(model, line) for line in available]
            answers = _answers(model, [fields for fields, *_ in rows if fields is not None], batch_size)
            for fields, other_fields, refusal in rows:
                answer = refusal if fields is None else next(answers)
                line = json.dumps(_given(other_fields, answer) | answer, ensure_ascii=False)
                # Half of a surrogate pair, which UTF-8 can't hold, is written as the escape that JSON has for it.
                writer.write(line.encode("utf-8", "backslashreplace").decode() + "\n")
                failed += answer.keys() == {"error"}
            writer.flush()
            total += len(available)
            read_bytes += sum(map(len, available))
            bar.total = max(total, round(input_bytes / read_bytes * total)) if input_bytes else None
            bar.update(len(available))
    return failed, total


@contextlib.contextmanager
def answers_file(path: str | None) -> Iterator[IO[str]]:
    """The writer of the answers: of a file, which appears when all are written, or of standard output without a path.

    If the block fails, the answers that are made already stay in a file beside it, `PATH.incomplete`.
    """
    if not path:
        sys.stdout.reconfigure(encoding="utf-8")
        yield sys.stdout
        return
    unfinished = f"{files.target_of(path)}.incomplete"
    with files.replacing(path) as writer:
        try:
            yield writer
        except BaseException:
            writer.flush()
            if files.is_remote(path) or not writer.tell():
                raise
            files.rename(writer.name, unfinished)
            program.say(f"The answers that were made are in {unfinished}.")
            raise
    files.remove(unfinished)


def _parsed(model: AnsweringModel, line: bytes) -> tuple[dict[str, Any] | None, dict[str, Any], dict[str, str]]:
    """Returns the fields that the model reads (None if the line can't be used), its other fields, and the error."""
    other_fields: dict[str, Any] = {}
    try:
        example = json_files.parse(line.decode("utf-8", "ignore").strip())
        if isinstance(example, dict):
            other_fields = model.other_fields(example)
        return model.check(example), other_fields, {}
    except InputError as error:
        return None, other_fields, {"error": str(error)}


def _given(fields: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """Fields of a line that are copied; one that would be taken for a part of the answer is called given_NAME."""
    return {f"given_{name}" if name in (*answer, "error") else name: value for name, value in fields.items()}


def _answers(model: AnsweringModel, examples: list[dict[str, Any]], batch_size: int) -> Iterator[dict[str, Any]]:
    """Yields the answers; for an example that the model refuses, the answer is its error message."""
    try:
        yield from model.predict(examples, batch_size)
    except InputError:
        for example in examples:
            try:
                yield from model.predict([example])
            except InputError as error:
                yield {"error": str(error).removeprefix("example 0: ")}


def _available(lines: Iterable[bytes], max_lines: int) -> Iterator[list[bytes]]:
    """Yields lists of the lines that have arrived, 1 to `max_lines` each, so that a typed line is answered at once."""
    # Behind the last line comes None, or the error with which reading has failed.
    arrived: queue.Queue[bytes | OSError | None] = queue.Queue(maxsize=4 * max_lines)

    def read() -> None:
        end = None
        try:
            for line in lines:
                if line.strip():
                    arrived.put(line)
        except OSError as error:
            end = error
        arrived.put(end)

    threading.Thread(target=read, daemon=True).start()
    is_open = True
    while is_open:
        available = [arrived.get()]
        while isinstance(available[-1], bytes) and len(available) < max_lines and not arrived.empty():
            available.append(arrived.get())
        end = None
        if not isinstance(available[-1], bytes):
            end, is_open = available.pop(), False
        if available:
            yield available
        if end is not None:
            raise InputError(f"the input can't be read any further ({end}). What was read before is answered.")
