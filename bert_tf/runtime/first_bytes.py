"""Detects compression and text encoding from the first bytes of a file, regardless of its name."""

import codecs
import re

# Patterns of the first bytes of compressed files.
_MAGIC = {
    rb"\x1f\x8b": "gzip",
    rb"BZh[1-9]1AY&SY": "bzip2",
    rb"\xfd7zXZ\x00": "xz",
    rb"\x28\xb5\x2f\xfd": "zstandard",
    rb"PK\x03\x04": "zip",
}
# The number of bytes that the functions below need.
LENGTH = 10


def compression(first: bytes) -> str:
    """Returns the name of the compression of a file that begins with these bytes; "" if there is none."""
    return next((name for magic, name in _MAGIC.items() if re.match(magic, first)), "")


def encoding(first: bytes) -> str:
    """Returns the codec of a text that begins with these bytes.

    UTF-16 is recognised by its byte-order mark, or by an ASCII first character, which has one zero byte.
    """
    start = first[:2]
    if start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "utf-16"
    if len(start) == 2 and start.count(0) == 1:
        return "utf-16-be" if start[0] == 0 else "utf-16-le"
    return "utf-8-sig"
