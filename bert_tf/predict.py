"""Answers JSON lines with an exported model. The answers are in the order of the lines.

    python -m bert_tf.predict --model=exported/qnli < questions.jsonl > answers.jsonl

A line is an object with the inputs of the model as fields, or a string if there is only one input. Other fields, such
as an id, are copied to the answer. If the answer has a field with the same name, the copy is named given_NAME. If a
line is blank or can't be used, the answer is {"error": ...}. In this case, the program answers the other lines and ends
with exit status 1.
"""

import sys

from absl import flags

from bert_tf import export
from bert_tf.runtime import files, lazy_imports, path_checks, program
from bert_tf.runtime.files import InputError
from bert_tf.runtime.storage import first_bytes
from bert_tf.serving import line_predictions
from bert_tf.serving.export_config import ENGINES, SERVING_DEFAULT, keep_packed_weights

_MODEL = flags.DEFINE_string("model", None, "Directory of an exported model.")
_INPUT_FILE = flags.DEFINE_string("input_file", None, "File of JSON lines. Default: standard input.")
_OUTPUT_FILE = flags.DEFINE_string(
    "output_file",
    None,
    "File for the answers, named OUTPUT_FILE.incomplete until it is complete. Default: standard output.",
)
_SIGNATURE = flags.DEFINE_string("signature", SERVING_DEFAULT, "Name of the model's signature to call.")
_ENGINE = flags.DEFINE_enum(
    "engine",
    ENGINES[0],
    ENGINES,
    "Library that runs the model. litert: faster, for LiteRT exports of texts, pairs and choices.",
)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "Number of lines per batch.", lower_bound=1)


def main() -> None:
    """Answers the lines of the input."""
    program.require_files("input_file")
    if _OUTPUT_FILE.value:
        inputs = {"--input_file": [_INPUT_FILE.value]} if _INPUT_FILE.value else {}
        path_checks.check_output_files([_OUTPUT_FILE.value], "--output_file", inputs)
    if _INPUT_FILE.value:
        with files.open_file(files.require_file(_INPUT_FILE.value, "--input_file"), "rb") as reader:
            file_format = first_bytes.format_of(reader.read(first_bytes.SEEN))
        if file_format not in ("", "JSON"):
            raise InputError(
                f"--input_file: {_INPUT_FILE.value} is {file_format}. Write JSON lines. In Python, pass a table."
            )
    keep_packed_weights()
    if _ENGINE.value == "tensorflow":
        lazy_imports.import_tensorflow_for_serving()
    model = export.load(_MODEL.value, _SIGNATURE.value, _ENGINE.value)
    if _INPUT_FILE.value:
        line_predictions.report_file(model, _INPUT_FILE.value, _MODEL.value)
    lines = files.open_file(_INPUT_FILE.value, "rb") if _INPUT_FILE.value else sys.stdin.buffer
    input_bytes = files.size(_INPUT_FILE.value) if _INPUT_FILE.value else 0
    with line_predictions.answers_file(_OUTPUT_FILE.value) as writer:
        failed, total = line_predictions.answer_lines(model, lines, writer, _BATCH_SIZE.value, input_bytes)
    if failed:
        raise InputError(f"{failed} of {total} lines could not be used. See 'error' in their answers.")


def cli() -> None:
    """Runs this module as a command."""
    program.run(main, required=["model"])


if __name__ == "__main__":
    cli()
