r"""The forms of texts that are not plain text, each with the patterns that show it, and the remedy.

A form of a line is a row of `LINE_FORMS`. To add one, add a row, with a part that each matching line contains, such as
"\\" for LaTeX: other lines are not searched.
"""

import re
from typing import NamedTuple

_TO_TEXT, _EXTRACT = "Convert it to plain text first.", "Extract its text with WikiExtractor and --json."
_TO_UTF8, _TO_WORDS = "Convert the original file to UTF-8.", "Keep only the words."
# Patterns of the start of a text that has another form, with the name of the form and the remedy.
TEXT_FORMS = {
    r"<doc\s[^>]*>": ("output of WikiExtractor with <doc> tags", "Run WikiExtractor with --json."),
    r"(<\?xml[^>]*>\s*)?<mediawiki": ("a Wikipedia dump", _EXTRACT),
    r"(?i)(<\?xml[^>]*>\s*)?<(!doctype )?html": ("HTML", _TO_TEXT),
    r"<\?xml": ("XML", _TO_TEXT),
    r"\{\\rtf": ("RTF", _TO_TEXT),
    r"[\[{]\s*\{?\s*[\"']": ("JSON or Python data", "Write a JSON object on each line, and pass --text_column."),
    r"WEBVTT": ("subtitles", "Remove the numbers and timestamps first."),
    r"%!PS|\\documentclass|\\input|@\w+\{": ("PostScript, LaTeX or BibTeX", _TO_TEXT),
    r"From \S+ +\w{3} \w{3} +\d|(Message-ID|Received|Return-Path|Delivered-To|MIME-Version): |"
    r"((From|To|Subject|Date|Newsgroups|Xref|Path|Organization): .*\n){2}": (
        "e-mails",
        "Extract the texts of the messages first.",
    ),
}
# The notice at the start of books of Project Gutenberg.
NOTICE = r"\W*(The Project Gutenberg|Project Gutenberg's|\*\*\* ?START OF TH)"


class LineForm(NamedTuple):
    """A form that lines of a text have.

    Attributes:
      name: the name, for messages.
      remedy: what to do.
      parts: a matching line contains one of these texts; empty if it contains a character that is not ASCII.
      inside: a pattern that is found anywhere in a line; "" if none.
      at_start: a pattern that is found at the start of a line; "" if none.
    """

    name: str
    remedy: str
    parts: tuple[str, ...]
    inside: str = ""
    at_start: str = ""

    def matches(self, line: str) -> bool:
        """Returns True if a line has this form."""
        is_inside = self.inside and re.search(self.inside, line)
        return bool(is_inside or (self.at_start and re.match(self.at_start, line)))


# Signs of a wrong code page: UTF-8 as Windows-1252 or 1251, the replacement character, four accented letters in
# succession, and a symbol after a letter and before a letter. The pattern begins with a class of characters, so that
# the search is fast.
_SYMBOLS = "\xa1-\xa6\xa9-\xac\xae-\xb1\xb4-\xb6\xb8\xbb-\xbf\u201a\u201e\u2020\u2021\u2030\u2039\u203a\u221a"
_WRONG = (
    rf"[\xc0-\xff\u0420\u251c\ufffd{_SYMBOLS}]((?<=[\xc2\xc3\xd0\xd1])[\x80-\xbf]|(?<=\xe2)\u20ac|(?<=\ufffd)|"
    r"(?<=\u0420)\u0455|(?<=\u201a)\xcc|(?<=\u251c)[^\s\u2500-\u257f]|(?<=[\xc0-\xff])[\xc0-\xff]{3}|"
    rf"(?<=[^\W\d_][{_SYMBOLS}])[{_SYMBOLS}]*[^\W\d_])"
)
_HTML_NAMES = r"br|p|hr|li|t[dr]|div|span|h\d|[biu]|em|strong"
_FILES = r"\S*\.(txt|jpe?g|png|gif|pdf|wav|mp3|json|csv|html?)\s*$|https?://\S+\s*$"

LINE_FORMS = (
    LineForm(
        "HTML or XML",
        "Remove the tags.",
        ("<", "&"),
        rf"(?i)<(?!/?s>)(/[a-z][\w:.-]*\s*|[a-z][\w:.-]*(\s+[\w:.-]+\s*=[^<>]*|\s*/)|{_HTML_NAMES})>|"
        r"&(?!amp;|[lg]t;)([a-z]{2,8}|#x?[\da-f]+);",
    ),
    LineForm("wiki markup", _EXTRACT, ("[[", "{{", "'''"), r"\[\[[^\[\]]+\]\]|\{\{|'''"),
    LineForm(
        "timestamps or levels of a log",
        "Remove them from the lines.",
        (":", "}{", "1", "INFO", "DEBUG"),
        inside=r"(?<!\d)\d{1,2}:\d\d:\d\d\b|[\[(][\W\d]{0,20}\b\d\d:\d\d[\])]",
        at_start=r"\W*(1\d{9}(\d{3})?\b|(INFO|DEBUG|WARNING|ERROR):\w+:)|\[\d{1,2}:\d\d\]|"
        r"\W*\d{1,2}:\d\d[.,]\d\d|\{\d+\}\{\d+\}|[\W\d]*\b\d{1,2}:\d\d( [AP]M)?\W+\w+( \w+)?[:>] |"
        r"(\S+ {1,2}){0,2}\d{1,2}:\d\d( ?[AP]M)?\s*$",
    ),
    LineForm(
        "names or quote marks of a chat or e-mail",
        "Remove them.",
        (">",),
        at_start=r">+ *\S|<(?!s>|unk>|/)[^<>\s]+> +\S",
    ),
    LineForm("commands of LaTeX or RTF", _TO_TEXT, ("\\",), r"\\[a-z]+\{|\\(par[d]?|fs\d+)\b|\$\S[^$]*\\[a-z]"),
    LineForm(
        "'##' before words", "Remove '##'. To mask whole words, pass --word_segmenter.", ("##",), r"(?<![#\w])##[^\W#]"
    ),
    LineForm(
        "marks of another tokenizer",
        "Join the tokens to words first.",
        ("@@", "\u2581", "\u0120", "RB-"),
        r"\w@@(\s|$)|\u2581\w|\u0120\w+\s+\u0120|-[LR]RB-",
    ),
    LineForm("special tokens", "Remove them.", ("[CLS]", "[SEP]", "INST]", "<|"), r"\[(CLS|SEP|/?INST)\]|<\|\w+\|>"),
    LineForm(
        "markup of Markdown or reStructuredText",
        _TO_TEXT,
        ("](", ".. ", ":`", "**", "```", "|"),
        inside=r"\]\([^)\s]+\)|:\w+:`[^`]+`|\*\*\w[^*]*\*\*",
        at_start=r"\.\. [\w-]+::|```|\|.*\|\s*$",
    ),
    LineForm(
        "wrongly decoded characters, such as '\xc3\xa9'",
        _TO_UTF8,
        (),
        inside=_WRONG,
        at_start=r"[а-яё][А-ЯЁ]*( [А-ЯЁ]+){3}",  # KOI8-R as Windows-1251: capital and small letters are swapped
    ),
    LineForm("'?' in the place of letters", _TO_UTF8, ("?",), r"\?((?<=[A-Za-z]\?)[a-z]+(?![\w=/&])|\? \?\?)"),
    LineForm(
        "escapes, such as '\\n' or '%20'",
        "Decode them.",
        ("\\", "%", "=", "+A", "(cid:"),
        r"\w\+A[A-P][\w/]-|\(cid:\d+\)|"
        r"\\u[\da-fA-F]{4}|\\x[\da-f]{2}|\\n([A-Z\\\s]|$)|%[2CDE][\dA-F]\S*%[2CDE][\dA-F]|=[CDE][\dA-F]=[89AB][\dA-F]",
    ),
    LineForm(
        "ligatures or presentation forms, such as '\ufb01'",
        "Normalise the text (Unicode's NFKC).",
        ("\ufb00", "\ufb01", "\ufb02", "\ufe8d", "\ufe8e", "\ufedf"),
        "[\ufb00-\ufb06\ufe80-\ufefc]",
    ),
    LineForm(
        "doubled quotes of CSV",
        "Write the texts without the quotes. To train on a TSV table with quotes, pass --delimiter=tab.",
        ('""',),
        at_start=r'".*(""\w|\w[.,!?]?"")',
    ),
    LineForm(
        "several columns",
        "Keep only the column with the text.",
        ("\t", ',"', "|", "+++$+++"),
        inside=r",\"[^\"]*\"(,|\s*$)| (\|\|\||\+\+\+\$\+\+\+) ",
        at_start=r"[^\t\w]*\w[^\t]*\t|[\w-]+ ?\| ?\S",
    ),
    LineForm(
        "labels or tags",
        _TO_WORDS,
        ("/", "_", " O", " B-", " I-", "(NP "),
        inside=r"[/_][A-Za-z.,$:'-]+\s+([^\s/_]+[/_][A-Za-z.,$:'-]+\s+){2}| (O|[BI]-[A-Z]\S*)\s*$|\(NP \([A-Z]+ ",
        at_start=r"__label__\S+ ",
    ),
    LineForm(
        "missing values",
        "Remove them.",
        ("",),
        at_start=r"(nan|NaN|<NA>|None|NULL|null|#(N/A|NAME\?|REF!|VALUE!)|\[(deleted|removed)\])$",
    ),
    LineForm(
        "encoded data or only numbers",
        "Decode or remove it.",
        ("",),
        at_start=r"(?=[a-zA-Z\d+/_-]{40,}=*\s*$)(?=.*\d)(?=.*[a-z])(?=.*[A-Z])|[\da-f]{6,8}:?\s+([\da-f]{2,4}\s){4}|"
        r"M[ -`]{60}$|[-+]?\.?\d[\d.\s,;+-]*$",
    ),
    LineForm("names of files or web addresses", "Use the texts in the files.", (".",), at_start=_FILES),
    LineForm(
        "spaces between the letters",
        "Join the letters to words first.",
        (" e ", " \u0435 "),
        r"(?<!\S)([A-Za-z\u0400-\u04ff] ){6}",
    ),
)
