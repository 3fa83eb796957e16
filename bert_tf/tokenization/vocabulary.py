"""Vocabulary files: read as the release reads them, and checked before a program uses one."""

import collections
import re
from collections.abc import Iterable

from bert_tf.runtime import files
from bert_tf.runtime.files import InputError

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

_LOWER_MODELS = (
    "uncased_L-24_H-1024_A-16",
    "uncased_L-12_H-768_A-12",
    "multilingual_L-12_H-768_A-12",
    "chinese_L-12_H-768_A-12",
)
_CASED_MODELS = ("cased_L-12_H-768_A-12", "cased_L-24_H-1024_A-16", "multi_cased_L-12_H-768_A-12")


def load_vocab(vocab_file: str) -> collections.OrderedDict[str, int]:
    """Reads a vocabulary, one piece a line, with the release's quirks.

    The id of a piece is its line's number; of a piece that stands twice, the last one's (in the place of the
    first). White space around a piece is stripped, carriage returns are deleted wherever they stand, blank lines
    count as the piece "".

    Raises:
      InputError: if the file is missing or empty, or not UTF-8.
    """
    text = files.read_text(vocab_file, "--vocab_file").replace("\r", "")
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    vocab: collections.OrderedDict[str, int] = collections.OrderedDict()
    for index, line in enumerate(lines):
        vocab[line.strip()] = index
    return vocab


def check_vocab_file(vocab_file: str) -> None:
    """Checks that a vocabulary is fit for training; the programs call this before they use one.

    Raises:
      InputError: if a special token is missing, a piece stands twice, a line is blank, or [PAD] is not the first.
    """
    text = files.read_text(vocab_file, "--vocab_file").replace("\r\n", "\n")
    first_line: dict[str, int] = {}
    for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
        where = f"--vocab_file: {vocab_file}, line {number}"
        if "\r" in line:
            raise InputError(f"{where}: a carriage return inside the line {line!r}. Save the file with \\n line ends.")
        piece = line.strip()
        if not piece:
            raise InputError(f"{where}: the line is blank, but one piece a line is expected. Remove the line.")
        if piece in first_line:
            raise InputError(
                f"{where}: the piece {piece!r} stands on line {first_line[piece]} already. "
                "Each piece may stand once; give the second a name of its own ([unused1]) to keep the other ids."
            )
        first_line[piece] = number
    missing = [token for token in SPECIAL_TOKENS if token not in first_line]
    if missing:
        raise InputError(
            f"--vocab_file: {vocab_file} has no {', '.join(missing)}. All of {', '.join(SPECIAL_TOKENS)} are needed. "
            "Is this the vocab.txt of a BERT model?"
        )
    if first_line["[PAD]"] != 1:
        raise InputError(
            f"--vocab_file: {vocab_file} has [PAD] on line {first_line['[PAD]']}, but padding is always id 0, "
            "so it must be the first line."
        )


def validate_case_matches_checkpoint(do_lower_case: bool, init_checkpoint: str | None) -> None:
    """Checks the casing flag against the names of the released models, as the release does.

    Raises:
      InputError: (a ValueError) if the checkpoint's folder has the name of a released model of the other casing.
    """
    match = re.match(r"^.*?([A-Za-z0-9_-]+)/bert_model.ckpt", init_checkpoint or "")
    if match is None:
        return
    name = match.group(1)
    if name in (_CASED_MODELS if do_lower_case else _LOWER_MODELS):
        raise _casing_error(do_lower_case, f"--init_checkpoint ({init_checkpoint}) is the released model {name}")


def validate_case_matches_vocab(do_lower_case: bool, vocab: Iterable[str]) -> None:
    """Checks the casing flag against the letters in a vocabulary.

    A lower-casing tokenizer never produces a piece with an upper-case letter, and a vocabulary learned from
    cased text has plenty. Only ASCII letters are looked at, and nothing in brackets.

    Raises:
      InputError: if the flag doesn't fit the vocabulary.
    """
    upper, lower = _letter_cases(vocab)
    if do_lower_case and upper:
        raise _casing_error(do_lower_case, f"--vocab_file has pieces with upper-case letters (such as {upper!r})")
    if not do_lower_case and lower and not upper:
        raise _casing_error(do_lower_case, "--vocab_file has no piece with an upper-case letter")


def guess_casing(vocab_file: str) -> bool:
    """Whether a vocabulary is that of a lower-casing tokenizer: it has no upper-case letter."""
    return not _letter_cases(load_vocab(vocab_file))[0]


def _letter_cases(vocab: Iterable[str]) -> tuple[str, str]:
    """A piece with an upper-case ASCII letter, and one with a lower-case one; "" where there is none."""
    pieces = "\n".join(piece for piece in vocab if not (piece.startswith("[") and piece.endswith("]")))
    found = [re.search(f"(?m)^.*{letters}.*", pieces) for letters in ("[A-Z]", "[a-z]")]
    return tuple(match.group() if match else "" for match in found)


def _casing_error(do_lower_case: bool, found: str) -> InputError:
    kind, fix = ("cased", "False") if do_lower_case else ("uncased", "True")
    return InputError(
        f"{found}, so the model is {kind}, but --do_lower_case is {do_lower_case}: text would be turned into "
        f"pieces that the model never saw. Set --do_lower_case={fix}."
    )
