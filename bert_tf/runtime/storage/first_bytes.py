"""Detects the format of a file from its beginning, regardless of its name: compression, binary, encoding, tables."""

import codecs
import csv
import re

# Patterns of the first bytes of compressed files, and of other files that are not text.
_MAGIC = {
    rb"\x1f\x8b": "gzip",
    rb"BZh[1-9]1AY&SY": "bzip2",
    rb"\xfd7zXZ\x00": "xz",
    rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18": "zstandard",  # the second one begins a frame to skip
    rb"PK\x03\x04": "zip",
    rb"\x5d\x00\x00[\x00-\xff]{2}(\xff{8}|[\x00-\xff]{5}\x00{3})": "lzma",
    rb"\x04\x22\x4d\x18|\x02\x21\x4c\x18": "lz4",
    rb"7z\xbc\xaf\x27\x1c": "7z",
    rb"Rar!\x1a\x07": "RAR",
    rb"[\x00-\xff]{257}ustar": "tar",
    rb"%PDF-": "PDF",
    rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": "Microsoft Office",
    rb"[\x00-\xff]{60}BOOKMOBI": "MOBI",
    rb"\x89PNG|\xff\xd8\xff|GIF8[79]a|II\*\x00|MM\x00\*": "image",
    rb"ID3[\x02-\x04]|OggS|fLaC|RIFF[\x00-\xff]{4}W|[\x00-\xff]{4}ftyp": "audio or video",
    rb"SQLite format 3\x00": "SQLite",
    rb"\x89HDF\r\n\x1a\n": "HDF5",
    rb"\x80[\x02-\x05]": "pickle",
    rb"\x93NUMPY": "NumPy",
    rb"\x7fELF": "program",
}
# Patterns of the first bytes of tables. The datasets library writes Arrow streams.
_TABLES = {rb"PAR1": "Parquet", rb"ARROW1": "Arrow", rb"\xff\xff\xff\xff": "Arrow stream"}
# The number of bytes that `compression`, `table` and `encoding` need.
LENGTH = 300
# The numbers of characters and of lines that `format_of_lines` reads.
SEEN, _SEEN_LINES = 1 << 16, 20
DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|"}
_JSON = re.compile(r'\s*(\[\s*)?\{\s*"[^"\n]*"\s*:')
_COLUMN_NAME = re.compile(r"[^\W\d]\w*([ #-]+\w*){0,2}")


def compression(first: bytes) -> str:
    """Returns the name of a compression, or of another binary format, that the first bytes show; "" if none."""
    return next((name for magic, name in _MAGIC.items() if re.match(magic, first)), "")


def table(first: bytes) -> str:
    """Returns "Parquet", "Arrow" or "Arrow stream" for a table that begins with these bytes; "" for other files."""
    return next((name for magic, name in _TABLES.items() if re.match(magic, first)), "")


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


def format_of(first: bytes) -> str:
    """Returns the compression, table format, encoding or line format that the first bytes show; "" if none."""
    is_utf16 = encoding(first) != "utf-8-sig"
    lines = "UTF-16" if is_utf16 else format_of_lines(first[:SEEN].decode(errors="ignore"))
    return compression(first) or table(first) or lines


def format_of_lines(text: str) -> str:
    """Returns the format that the first lines of a text show: "JSON", "a table with commas" or similar; "" if none.

    A table has a line of column names, then lines with the same number of cells. If all these cells are words, the
    lines are text.
    """
    if _JSON.match(text):
        return "JSON"
    lines = [line for line in text[:SEEN].splitlines() if line.strip()][:_SEEN_LINES]
    for name, delimiter in DELIMITERS.items() if len(lines) > 1 else ():
        header, *rows = csv.reader(lines, delimiter=delimiter)
        is_header = len(header) > 1 and all(map(_COLUMN_NAME.fullmatch, header)) and len(set(header)) == len(header)
        others = [cell for row in rows for cell in row if not cell.isidentifier()]
        if is_header and others and all(len(row) == len(header) for row in rows[:-1] or rows):
            return f"a table with {name}s"
    return ""
