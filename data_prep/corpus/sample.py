"""Checks a sample of a corpus, and reports unusual properties before the work begins."""

import itertools
from collections.abc import Sequence

from bert_tf.data_report import findings, texts
from bert_tf.data_report.findings import Finding
from bert_tf.text import Tokenizer
from bert_tf.text.vocabulary import UNK
from data_prep.corpus.files import FileRange, InputFile
from data_prep.corpus.lines import INPUT_FLAG
from data_prep.corpus.reader import CorpusOptions, CorpusReader

# The largest number of lines of a file to check, and the smallest number of characters.
_LINES, _SMALLEST = 10_000, 1 << 10
# A file of so few lines is checked in pieces of so many characters.
_FEW_LINES, _PIECE = 2, 200
# The number of characters of all files to check: a 128th of the bytes, between these limits. For 13 MB in 17 files, the
# checks of the first 10,000 lines of each file took 22% of the processor time, and this sample took 0.7%.
_SHARE, _FEWEST, _MOST = 128, 1 << 15, 1 << 22
# If more than this fraction of the lines is not plain text, the file or a flag is probably wrong. Texts may be missing
# or cut.
_BAD, _FEW_BAD, _USUAL = 0.2, 5, ("null", "without text", "an empty file", "half of a surrogate pair")


def report_sample(
    inputs: Sequence[InputFile],
    corpus: CorpusOptions,
    strips_accents: bool,
    allows_errors: bool,
    tokenizer: Tokenizer | None = None,
    needs_words: bool = False,
) -> None:
    """Reports unusual properties of the first lines of the files. A kind of finding is printed for the first file only.

    Args:
      inputs: the files.
      corpus: how files are split into lines.
      strips_accents: whether the tokenizer removes accents.
      allows_errors: if True, errors are printed as warnings.
      tokenizer: the tokenizer; None if there is no vocabulary yet.
      needs_words: whether the tokens must show words, for whole-word masking.

    Raises:
      InputError: if a finding is an error, and errors are not allowed.
    """
    reader_options = corpus.replace(split_sentences=False, join_lines=False)
    total = min(_MOST, max(_FEWEST, sum(file.size for file in inputs) // _SHARE))
    characters = max(_SMALLEST, total // len(inputs))
    sample: list[str] = []
    for file in inputs[: total // characters]:
        where, reader, size = f"{INPUT_FLAG}: {file.path}", CorpusReader(reader_options), 0
        lines: list[str | None] = []
        unusual: list[Finding] = []
        for line in itertools.islice(reader.sentences(FileRange(file, 0, file.size)), _LINES):
            lines.append(line)
            size += len(line or "")
            if size > characters:
                break
        file_texts = list(filter(None, lines))
        pieces = file_texts
        if len(file_texts) <= _FEW_LINES:
            pieces = [text[i : i + _PIECE] for text in file_texts for i in range(0, len(text), _PIECE)]
        reasons = {reason: count for _, reason, count, _ in reader.bad_lines if not reason.endswith(_USUAL)}
        bad = sum(reasons.values())
        skipped = sum(count for action, _, count, _ in reader.bad_lines if action == "skipped")
        line_count = sum(line is not None for line in lines) + skipped
        if bad > max(_FEW_BAD, _BAD * line_count) or (bad and skipped == line_count):
            problem = f"{bad} of {line_count} lines are not plain text: {max(reasons, key=reasons.__getitem__)}"
            remedy = "Convert the file to text in UTF-8." if file.format == "text" else "Correct it, or --text_column."
            unusual.append(Finding("binary", f"{where}: {problem}. {remedy}", is_error=True))
        unusual += texts.unusual_texts(pieces, where, strips_accents)
        unusual += texts.broken_words(lines, where)
        unusual += texts.unusual_lines(lines, where, corpus.split_sentences)
        if not corpus.join_lines:
            unusual += texts.wrapped_lines(lines, where)
        findings.report(unusual, allows_errors, once=True)
        sample += file_texts
    if tokenizer:
        ids = texts.sample_ids(sample, tokenizer)
        unusual = list(texts.unknown_tokens(ids.count(tokenizer.vocab.get(UNK)), len(ids), INPUT_FLAG))
        if needs_words:
            unusual += texts.words_of_one_token(sample, ids, tokenizer, INPUT_FLAG)
        findings.report(unusual, allows_errors, once=True)
