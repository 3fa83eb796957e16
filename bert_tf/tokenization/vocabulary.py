"""Vocabulary files: reads them as the release does, and checks them for the programs."""

import collections
import os
import re
from collections.abc import Iterable
from typing import Any, TypedDict

from bert_tf.runtime import files, json_files
from bert_tf.runtime.files import InputError

SPECIAL_TOKENS = PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
VOCAB_FILE = "vocab.txt"
# A vocabulary with everything else that Hugging Face's tokenizers know.
TOKENIZER_JSON = "tokenizer.json"
# A piece with this prefix continues a word.
CONTINUATION = "##"
# Longer words become [UNK].
MAX_CHARS_PER_WORD = 200
# Released vocabularies have other characters that the tokenizer drops; these show that a file is something else.
_NOT_IN_PIECES = re.compile(r"[ \t\x00-\x1f]")

_LOWER_MODELS = (
    "uncased_L-24_H-1024_A-16",
    "uncased_L-12_H-768_A-12",
    "multilingual_L-12_H-768_A-12",
    "chinese_L-12_H-768_A-12",
)
_CASED_MODELS = ("cased_L-12_H-768_A-12", "cased_L-24_H-1024_A-16", "multi_cased_L-12_H-768_A-12")


class _Model(TypedDict, total=False):
    type: str
    vocab: dict[str, int] | list[Any]  # a list in models that are not WordPiece


class _TokenizerFile(TypedDict):
    model: _Model


def vocabulary_text(vocab_file: str) -> str:
    """Reads the text of a vocab.txt, or makes it from a `tokenizer.json`, which may be all that Hugging Face wrote.

    Raises:
      InputError: if the file is missing or empty, or not UTF-8, or a `tokenizer.json` holds no WordPiece vocabulary.
    """
    if os.path.basename(vocab_file) != TOKENIZER_JSON:
        return files.read_text(vocab_file, "--vocab_file")
    model = json_files.read(vocab_file, "--vocab_file", _TokenizerFile)["model"]
    if model.get("type") != "WordPiece" or not isinstance(model.get("vocab"), dict):
        raise InputError(
            f"--vocab_file: {vocab_file} is a tokenizer of {model.get('type')!r}, but WordPiece is expected."
        )
    pieces = sorted(model["vocab"], key=model["vocab"].get)
    if [model["vocab"][piece] for piece in pieces] != list(range(len(pieces))):
        raise InputError(f"--vocab_file: the ids in {vocab_file} have gaps, but 0 to {len(pieces) - 1} are expected.")
    return "".join(f"{piece}\n" for piece in pieces)


def load_vocab(vocab_file: str) -> collections.OrderedDict[str, int]:
    """Reads a vocabulary with one piece per line, as the release does.

    The id of a piece is its line number, counted from 0. If a piece occurs twice, the last line counts (in the order of
    the first). White space around pieces and all carriage returns are removed. A blank line is the piece "".

    Raises:
      InputError: if the file is missing or empty, or not UTF-8.
    """
    text = vocabulary_text(vocab_file).replace("\r", "")
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    vocab: collections.OrderedDict[str, int] = collections.OrderedDict()
    for index, line in enumerate(lines):
        vocab[line.strip()] = index
    return vocab


def check_vocab_file(vocab_file: str) -> None:
    """Checks that a vocabulary can be used by the programs.

    Raises:
      InputError: if a special token is missing, a piece occurs twice, is too long or has white space inside, a line is
        blank, or [PAD] is not the first.
    """
    text = vocabulary_text(vocab_file).replace("\r\n", "\n")
    first_line: dict[str, int] = {}
    for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
        where = f"--vocab_file: {vocab_file}, line {number}"
        if "\r" in line:
            raise InputError(f"{where}: a carriage return inside the line {line!r}. Save the file with \\n line ends.")
        piece = line.strip()
        if not piece:
            raise InputError(f"{where}: the line is blank, but one piece per line is expected. Remove the line.")
        if _NOT_IN_PIECES.search(piece):
            raise InputError(
                f"{where}: the piece {piece[:40]!r} has white space or a control character inside, so no text has it. "
                "One piece per line is expected. Is this a vocab.txt?"
            )
        if len(piece) > len(CONTINUATION) + MAX_CHARS_PER_WORD:
            raise InputError(
                f"{where}: the piece {piece[:40]!r}... has {len(piece)} characters, but words have at most "
                f"{MAX_CHARS_PER_WORD}. Is this a vocab.txt?"
            )
        if piece in first_line:
            raise InputError(
                f"{where}: the piece {piece!r} is already on line {first_line[piece]}. Each piece may occur "
                "once. To keep the ids of the other pieces, rename this one (for example to [unused1])."
            )
        first_line[piece] = number
    missing = [token for token in SPECIAL_TOKENS if token not in first_line]
    if missing:
        raise InputError(
            f"--vocab_file: {vocab_file} has no {', '.join(missing)}. All of {', '.join(SPECIAL_TOKENS)} are needed. "
            "Is this the vocab.txt of a BERT model?"
        )
    if first_line[PAD] != 1:
        raise InputError(
            f"--vocab_file: {vocab_file} has [PAD] on line {first_line[PAD]}, but padding always has id 0, "
            "so it must be on the first line."
        )


def validate_case_matches_checkpoint(do_lower_case: bool, init_checkpoint: str | None) -> None:
    """Checks the casing flag against the names of the released models, as the release does.

    Raises:
      InputError: (a ValueError) if the checkpoint's folder is named like a released model with the other casing.
    """
    match = re.match(r"^.*?([A-Za-z0-9_-]+)/bert_model.ckpt", init_checkpoint or "")
    if match is None:
        return
    name = match.group(1)
    if name in (_CASED_MODELS if do_lower_case else _LOWER_MODELS):
        raise _casing_error(do_lower_case, f"--init_checkpoint ({init_checkpoint}) is the released model {name}")


def validate_case_matches_vocab(do_lower_case: bool, vocab: Iterable[str]) -> None:
    """Checks the casing flag against the letters in a vocabulary.

    A lower-casing tokenizer never produces a piece with an upper-case letter, and a vocabulary of cased text has many.
    Only ASCII letters outside of brackets are checked.

    Raises:
      InputError: if the flag doesn't match the vocabulary.
    """
    upper, lower = _letter_cases(vocab)
    if do_lower_case and upper:
        raise _casing_error(do_lower_case, f"--vocab_file has pieces with upper-case letters (such as {upper!r})")
    if not do_lower_case and lower and not upper:
        raise _casing_error(do_lower_case, "--vocab_file has no piece with an upper-case letter")


def guess_casing(vocab_file: str) -> bool:
    """Returns True if a vocabulary has no upper-case letter, so its tokenizer must convert to lower case."""
    return not _letter_cases(load_vocab(vocab_file))[0]


def _letter_cases(vocab: Iterable[str]) -> tuple[str, str]:
    """Finds a piece with an upper-case and one with a lower-case ASCII letter; "" if there is none."""
    pieces = "\n".join(piece for piece in vocab if not (piece.startswith("[") and piece.endswith("]")))
    found = [re.search(f"(?m)^.*{letters}.*", pieces) for letters in ("[A-Z]", "[a-z]")]
    return tuple(match.group() if match else "" for match in found)


def _casing_error(do_lower_case: bool, found: str) -> InputError:
    kind, fix = ("cased", "False") if do_lower_case else ("uncased", "True")
    return InputError(
        f"{found}, so the model is {kind}, but --do_lower_case is {do_lower_case}: the text would become "
        f"pieces that the model has never seen. Set --do_lower_case={fix}."
    )
