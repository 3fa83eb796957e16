"""Answers JSON lines with an exported model. Lines are answered in order, as soon as they arrive."""

import codecs
import contextlib
import itertools
import json
import os
import queue
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import IO, Any

from bert_tf.data_report.splits import report_inputs
from bert_tf.runtime import files, json_files, reporting
from bert_tf.runtime.files import InputError
from bert_tf.serving.answering import Predictor
from bert_tf.text import Tokenizer
from bert_tf.text.vocabulary import VOCAB_FILE

# Number of batches for which lines are sorted by length together.
_SORTED_BATCHES = 16
# Number of lines that `report_file` reads.
_REPORTED_LINES = 1000


def answer_lines(
    model: Predictor, lines: Iterable[bytes], writer: IO[str], batch_size: int, input_bytes: int = 0
) -> tuple[int, int]:
    """Writes an answer for each line as soon as it is computed. The answer to a blank line is an error.

    Args:
      model: the model.
      lines: lines of JSON. While lines are answered, further lines are read.
      writer: the file of the answers.
      batch_size: number of lines per batch.
      input_bytes: total size of the lines, for estimating the remaining time; 0 if unknown.

    Returns:
      The number of lines that could not be used, and the number of all lines.

    Raises:
      InputError: if reading fails. Earlier lines are answered.
    """
    total = failed = read_bytes = 0
    with reporting.progress_bar(None, "predict", unit="line") as bar:
        for available in _available(lines, batch_size * _SORTED_BATCHES):
            examples = [_parsed(line) for line in available]
            for example, answer in zip(examples, model.answer(examples, batch_size), strict=True):
                if isinstance(answer, InputError):
                    answer = {"error": str(answer)}
                    failed += 1
                others = model.other_fields(example) if isinstance(example, dict) else {}
                line = json.dumps(_given(others, answer) | answer, ensure_ascii=False)
                # A lone surrogate is not valid UTF-8, so it is written as a JSON escape.
                writer.write(line.encode("utf-8", "backslashreplace").decode() + "\n")
            writer.flush()
            total += len(available)
            read_bytes += sum(map(len, available))
            bar.total = max(total, round(input_bytes / read_bytes * total)) if input_bytes else None
            bar.update(len(available))
    return failed, total


@contextlib.contextmanager
def answers_file(path: str | None) -> Iterator[IO[str]]:
    """Yields a writer for the answers: to a file, or to standard output if there is no path.

    Until all answers are written, and after an error or a kill, the file is named `PATH.incomplete`.

    Raises:
      InputError: if another program writes answers to the same file.
    """
    if not path:
        sys.stdout.reconfigure(encoding="utf-8")
        yield sys.stdout
        return
    path = files.target_of(path)
    files.make_directory(os.path.dirname(path))
    unfinished = f"{path}.incomplete"
    with files.open_file(unfinished, "w" if files.is_remote(path) else "a") as writer:
        if not files.is_remote(path):
            if not files.claims(writer.fileno(), unfinished):
                raise InputError(f"{path}: another program writes this file. Pass another name.")
            writer.truncate(0)
        yield writer
    files.sync(unfinished)
    files.rename(unfinished, path)


def report_file(model: Predictor, path: str, directory: str) -> None:
    """Reports unusual properties of the texts in the first lines of a file, if the model has a vocabulary.

    Args:
      model: the model.
      path: a file of JSON lines.
      directory: the directory of the model.
    """
    vocab_file = os.path.join(directory, VOCAB_FILE)
    if not files.exists(vocab_file):
        return
    texts: list[str] = []
    with files.open_file(path, "rb") as reader:
        for line in itertools.islice(reader, _REPORTED_LINES):
            with contextlib.suppress(InputError):
                for value in model.check(_parsed(line)).values():
                    texts += filter(lambda text: isinstance(text, str), [value] if isinstance(value, str) else value)
    with contextlib.suppress(InputError):  # the tokenizer of a model of another program may not be supported
        report_inputs(texts, Tokenizer.checked(vocab_file), "--input_file", once=True)


def _parsed(line: bytes) -> Any:
    if not line.strip():
        return InputError("the line is blank. Give JSON, or remove the line.")
    try:
        return json_files.parse(line.decode().strip())
    except UnicodeDecodeError as error:
        return InputError(f"byte 0x{line[error.start]:02x} is not UTF-8. Convert the file (`iconv -t UTF-8`).")
    except InputError as error:
        return error


def _given(fields: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields to copy to the answer. If the answer has a field of the same name, adds the prefix given_."""
    return {f"given_{name}" if name in (*answer, "error") else name: value for name, value in fields.items()}


def _available(lines: Iterable[bytes], max_lines: int) -> Iterator[list[bytes]]:
    """Yields lists of 1 to `max_lines` lines that have arrived, so that a typed line is answered immediately."""
    # The last item is None, or the error that ended reading.
    arrived: queue.Queue[bytes | Exception | None] = queue.Queue(maxsize=4 * max_lines)

    def read() -> None:
        try:
            for number, line in enumerate(lines):
                arrived.put(line if number else line.removeprefix(codecs.BOM_UTF8))
            arrived.put(None)
        except Exception as error:  # also TensorFlow's errors for remote files
            arrived.put(error)

    threading.Thread(target=read, daemon=True).start()
    line: bytes | Exception | None = b""
    while isinstance(line, bytes):
        available = []
        while not available or (len(available) < max_lines and not arrived.empty()):
            line = arrived.get()
            if not isinstance(line, bytes):
                break
            available.append(line)
        if available:
            yield available
    if line is not None:
        raise InputError(f"the input can't be read any further ({line}). Earlier lines are answered.")
