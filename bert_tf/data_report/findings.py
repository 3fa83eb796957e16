"""Findings about data: printed as warnings, or raised as errors."""

from collections.abc import Iterable
from typing import Annotated, NamedTuple

from bert_tf.runtime.errors import InputError
from bert_tf.runtime.messages import say
from bert_tf.runtime.settings import about

# The type of the setting that turns errors into warnings.
AllowUnusualData = Annotated[bool, about("Print a warning instead of an error if the data looks unusable.")]

_reported: set[str] = set()  # the kinds of the findings that were printed with `once`


class Finding(NamedTuple):
    """Something unusual in data.

    Attributes:
      kind: the name of the check.
      message: the location, the problem and the solution.
      is_error: whether the data is so far out of bounds that it is probably the wrong data.
    """

    kind: str
    message: str
    is_error: bool = False


def report(findings: Iterable[Finding], allows_errors: bool = True, once: bool = False) -> None:
    """Prints findings.

    Args:
      findings: the findings.
      allows_errors: if True, errors are printed as warnings.
      once: whether to print only the first finding of each kind in this process.

    Raises:
      InputError: if a finding is an error, and errors are not allowed.
    """
    for kind, message, is_error in findings:
        if is_error and not allows_errors:
            raise InputError(f"{message} To use the data as it is, pass --allow_unusual_data.")
        if not (once and kind in _reported):
            say(f"Warning: {message}")
        if once:
            _reported.add(kind)
