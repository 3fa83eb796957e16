"""Answers JSON lines with an exported model, as they come, in their order."""

import json
import queue
import threading
from collections.abc import Iterable, Iterator
from typing import IO, Any

from bert_tf.runtime import reporting
from bert_tf.runtime.files import InputError
from bert_tf.serving.saved_model import ExportedModel

# How many batches are sorted by length at once.
_BATCHES_AT_ONCE = 16


def answer_lines(model: ExportedModel, lines: Iterable[bytes], writer: IO[str], batch_size: int) -> tuple[int, int]:
    """Writes an answer for each line that isn't empty, as soon as there is one.

    Args:
      model: what answers.
      lines: JSON; they are read while others are answered.
      writer: where the answers go.
      batch_size: lines that are computed together.

    Returns:
      How many lines couldn't be used, and how many there were.
    """
    total = failed = 0
    with reporting.progress_bar(None, "predict", unit="line") as bar:
        for some in _available(lines, batch_size * _BATCHES_AT_ONCE):
            rows = [_parsed(model, line) for line in some]
            answers = _answers(model, [fields for fields, _ in rows if fields is not None], batch_size)
            for fields, others in rows:
                answer = {} if fields is None else next(answers)
                writer.write(json.dumps(others | answer, ensure_ascii=False) + "\n")
                failed += fields is None or answer.keys() == {"error"}
            writer.flush()
            total += len(some)
            bar.update(len(some))
    return failed, total


def _parsed(model: ExportedModel, line: bytes) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """A line's fields that the model reads (None if it can't be used), and what its answer has besides."""
    others: dict[str, Any] = {}
    try:
        example = json.loads(line.decode("utf-8", "ignore"))
        if isinstance(example, dict):
            others = {name: value for name, value in example.items() if name not in model.inputs}
        return model.check(example), others
    except json.JSONDecodeError as error:
        return None, {"error": f"not valid JSON ({error.msg}, column {error.colno})"}
    except InputError as error:
        return None, others | {"error": str(error)}


def _answers(model: ExportedModel, examples: list[dict[str, Any]], batch_size: int) -> Iterator[dict[str, Any]]:
    """The answers, those that the model refuses with what it says."""
    try:
        yield from model.predict(examples, batch_size)
    except InputError:
        for example in examples:
            try:
                yield from model.predict([example])
            except InputError as error:
                yield {"error": str(error).removeprefix("example 0: ")}


def _available(lines: Iterable[bytes], most: int) -> Iterator[list[bytes]]:
    """Lists of the lines that have come, at least one and at most so many: who types a line needn't type more."""
    waiting: queue.Queue[bytes | None] = queue.Queue(maxsize=4 * most)

    def read() -> None:
        for line in lines:
            if line.strip():
                waiting.put(line)
        waiting.put(None)

    threading.Thread(target=read, daemon=True).start()
    is_open = True
    while is_open:
        some = [waiting.get()]
        while some[-1] is not None and len(some) < most and not waiting.empty():
            some.append(waiting.get())
        if some[-1] is None:
            some.pop()
            is_open = False
        if some:
            yield some
