"""Python functions that run the programs for vocabularies and pre-training data, on texts or files."""

import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence

from bert_tf.runtime import files, program
from bert_tf.runtime.errors import InputError, explanation, is_no_list

Flag = str | int | float | bool | os.PathLike[str] | Sequence[str]


def build_vocab(
    texts: str | os.PathLike[str] | Iterable[str],
    output_file: str | os.PathLike[str],
    vocab_size: int = 30522,
    **flags: Flag,
) -> None:
    """Learns a vocabulary. See `data_prep.build_vocab`.

    Args:
      texts: files, glob patterns and directories, separated by commas; or texts themselves.
      output_file: the vocabulary to write.
      vocab_size: the number of tokens, including special ones.
      flags: other flags of the program.

    Raises:
      InputError: if the program ends with an error; contains its message.
    """
    _run("build_vocab", texts, {"output_file": output_file, "vocab_size": vocab_size, **flags})


def create_pretraining_data(
    texts: str | os.PathLike[str] | Iterable[str],
    output_file: str | os.PathLike[str],
    vocab_file: str | os.PathLike[str],
    **flags: Flag,
) -> None:
    """Makes TFRecords of masked sentence pairs. See `data_prep.create_pretraining_data`.

    Args:
      texts: files, glob patterns and directories, separated by commas, with one sentence per line; or texts themselves,
        one per document. Texts are split into sentences, or into lines with `split_sentences=False`.
      output_file: the TFRecords to write.
      vocab_file: the vocabulary.
      flags: other flags of the program.

    Raises:
      InputError: if the program ends with an error; contains its message.
    """
    split = {} if isinstance(texts, str | os.PathLike) else {"split_sentences": True}
    _run("create_pretraining_data", texts, {"output_file": output_file, "vocab_file": vocab_file, **split, **flags})


def _run(name: str, texts: str | os.PathLike[str] | Iterable[str], flags: dict[str, Flag]) -> None:
    """Runs a program in a separate process, because its worker processes import the main module again."""
    with _input_files(texts) as input_file:
        flags = {"input_file": input_file, **flags}
        arguments = [f"--{k}={','.join(v) if isinstance(v, list | tuple) else v}" for k, v in flags.items()]
        command = [sys.executable, "-c", "from data_prep import api; api._run_program()", name, *arguments]
        # A notebook shows only the output that this process itself writes.
        process = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
    if process.returncode:
        message = process.stdout or process.stderr[-2000:] or str(process.returncode)
        raise InputError(f"data_prep.{name}: {message.strip()}")
    sys.stderr.write(process.stderr)


@contextlib.contextmanager
def _input_files(texts: str | os.PathLike[str] | Iterable[str]) -> Iterator[str]:
    if isinstance(texts, str | os.PathLike):
        yield os.fspath(texts)
        return
    if is_no_list(texts):
        raise InputError(f"texts is a {type(texts).__name__}. Pass a list of texts, such as one column of a table.")
    with tempfile.TemporaryDirectory(prefix="data_prep-") as directory:
        path = os.path.join(directory, "texts.jsonl")
        with files.replacing(path, "wb") as writer:
            for number, text in enumerate(texts):
                if not isinstance(text, str):
                    raise InputError(f"text {number} is {str(text)[:40]!r} ({type(text).__name__}). Use a str.")
                line = json.dumps({"text": text}, ensure_ascii=False) + "\n"
                # Half of a surrogate pair is not valid UTF-8. Its backslash escape is also its JSON escape.
                writer.write(line.encode("utf-8", "backslashreplace"))
        yield path


def _run_program() -> None:
    """Runs the program named on the command line. Standard output contains only the error message, if any."""
    program.on_failure(lambda error: print(explanation(error) or error))
    importlib.import_module(f"data_prep.{sys.argv.pop(1)}").cli()
