"""An exported model, its answers to hostile lines, and readers that fail."""

import io
import json
import os
import pathlib
import random
import tempfile
from collections import Counter
from collections.abc import Iterator

import psutil

from bert_tf import export
from bert_tf.finetuning.models import ClassifierModel
from bert_tf.runtime.files import InputError
from bert_tf.serving import answering, line_predictions
from tests import test_export

_VALUES = (
    '"a b c"', '""', '"' + "ab " * 3000 + '"', '"\\ud800"', '"\\u0000\\uffff"', "7", "null", "[]", "{}", "1e999", "NaN",
    "[" * 2000 + "]" * 2000, "9" * 6000, '"\\u202e\\u0130\\ufb01"', "true", '["a"]', '"天地"',
)  # fmt: skip
_LINES = 600


def model_folder(parent: int) -> str:
    """The folder of the model that all trials of a chamber share, by its process."""
    return os.path.join(tempfile.gettempdir(), f"torture-model-{parent}")


def trial(folder: str, rng: random.Random, number: int, counts: Counter) -> None:
    """Every line has an answer that is JSON, in order; memory stays flat; a failing reader loses no answer."""
    exported = model_folder(os.getppid())
    if not os.path.exists(exported):
        settings = {"task": "custom", "problem": "classification", "labels": ["x", "y", "z"]}
        model = ClassifierModel(test_export.config(), 3)
        run = test_export.write_run(pathlib.Path(folder) / "run", model, {"text_b_column": "other"}, **settings)
        export.export_run(run, exported)
    model = export.load(exported)
    first = _answer(model, [_line(rng, number) for number in range(_LINES)], counts)
    before = psutil.Process().memory_info().rss
    assert first == _LINES
    _answer(model, [_line(rng, number) for number in range(_LINES)], counts)
    assert psutil.Process().memory_info().rss - before < 200 << 20
    good = json.dumps({"text_a": "a", "text_b": "b"}).encode()

    def failing() -> Iterator[bytes]:
        yield from [good] * rng.randint(1, 50)
        raise OSError(5, "Input/output error")

    written = io.StringIO()
    try:
        line_predictions.answer_lines(model, failing(), written, 8)
        raise AssertionError("the error was lost")
    except InputError:
        assert written.getvalue().count("\n") >= 1
    counts["failing readers"] += 1


def _line(rng: random.Random, number: int) -> bytes:
    fields = [f'"{name}": {rng.choice(_VALUES)}' for name in ("text_a", "text_b", "other") if rng.random() < 0.95]
    line = f'{{"id": {number}, {", ".join(fields)}}}'.encode()
    if rng.random() < 0.1:
        at = rng.randrange(line.index(b","), len(line))  # behind the id, by which answers are known
        line = line[:at] + rng.randbytes(3).replace(b"\n", b"") + line[at:] if rng.random() < 0.5 else line[:at] or b"{"
    return line


def _answer(model: answering.AnsweringModel, lines: list[bytes], counts: Counter) -> int:
    written = io.StringIO()
    _, total = line_predictions.answer_lines(model, lines, written, 16)
    answers = [json.loads(line) for line in written.getvalue().splitlines()]
    assert len(answers) == total == len(lines), (len(answers), total)
    for number, answer in enumerate(answers):
        assert answer.get("id", number) == number and ("error" in answer or "label" in answer), answer
    written.getvalue().encode()
    counts["lines answered"] += total
    return total
