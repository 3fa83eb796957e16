"""Learns a WordPiece vocabulary from text.

Words are counted as the tokenizer splits them, so the vocabulary contains what the tokenizer will look up. The file
holds the special tokens, the reserved and unused ones, the alphabet, and all other tokens by falling frequency.
"""

import os
import shutil

from absl import flags

from bert_tf.runtime import files, program
from bert_tf.runtime.claims import claimed
from bert_tf.runtime.files import InputError
from bert_tf.runtime.parallel import available_cores
from bert_tf.runtime.program import say
from bert_tf.tokenization.vocabulary import SPECIAL_TOKENS
from data_prep.corpus.files import (
    HELP_INPUT_FORMAT,
    INPUT_FORMATS,
    corpus_bytes,
    cut_into_splits,
    find_input_files,
    require_columns,
)
from data_prep.corpus.reader import HELP_ON_BAD_LINE, ON_BAD_LINE, CorpusOptions, bad_line_messages
from data_prep.corpus.word_counts import BoundedCounter, add_up, count_words
from data_prep.corpus.wordpiece_learner import learn_vocabulary
from data_prep.workers import Workers

_INPUT_FILE = flags.DEFINE_string("input_file", None, "Text: files, globs and folders, separated by commas.")
_OUTPUT_FILE = flags.DEFINE_string("output_file", None, "Vocabulary file to write, one token per line.")
_VOCAB_SIZE = flags.DEFINE_integer("vocab_size", 30522, "Number of tokens, including special ones.")
_DO_LOWER_CASE = flags.DEFINE_bool("do_lower_case", True, "For uncased models: convert to lower case, remove accents.")
_RESERVED_TOKENS = flags.DEFINE_list("reserved_tokens", [], "Additional tokens after the special tokens.")
_NUM_UNUSED = flags.DEFINE_integer("num_unused", 0, "Number of [unusedN] tokens to replace later.", lower_bound=0)
_MAX_ALPHABET = flags.DEFINE_integer(
    "max_alphabet",
    0,
    "Most characters; words with rarer characters are left out. By default 1000, or as many as 99.95% of the text "
    "consist of.",
    lower_bound=0,
)
_MAX_WORDS = flags.DEFINE_integer("max_words", 1_000_000, "Most words in the memory of a process.", lower_bound=1)
_INPUT_FORMAT = flags.DEFINE_enum("input_format", "auto", INPUT_FORMATS, HELP_INPUT_FORMAT)
_TEXT_COLUMN = flags.DEFINE_string("text_column", "text", "Name of the text in JSON lines and Parquet files.")
_ON_BAD_LINE = flags.DEFINE_enum("on_bad_line", "clean", ON_BAD_LINE, HELP_ON_BAD_LINE)
_NUM_WORKERS = flags.DEFINE_integer("num_workers", 0, "Number of processes; 0 for one per core.", lower_bound=0)


def main() -> None:
    """Counts words, learns the vocabulary, and writes it."""
    first = _first_tokens()
    counter = _count_words()
    vocabulary = learn_vocabulary(counter.counts, _VOCAB_SIZE.value, first, _MAX_ALPHABET.value)
    with files.replacing(_OUTPUT_FILE.value) as writer:
        writer.writelines(f"{token}\n" for token in vocabulary)
    say(f"{_OUTPUT_FILE.value}: {len(vocabulary)} tokens.")
    if len(vocabulary) < _VOCAB_SIZE.value:
        say(f"The words of this text have no more tokens, so there are fewer than --vocab_size={_VOCAB_SIZE.value}.")


def _first_tokens() -> list[str]:
    first = [*SPECIAL_TOKENS, *_RESERVED_TOKENS.value, *(f"[unused{i}]" for i in range(_NUM_UNUSED.value))]
    for token in first:
        if first.count(token) > 1 or not token or token != "".join(token.split()):
            raise InputError(
                f"--reserved_tokens: {token!r} is empty, contains white space, or occurs twice "
                "(the special tokens and [unusedN] are always there)."
            )
    return first


def _count_words() -> BoundedCounter:
    corpus = CorpusOptions("record", on_bad_line=_ON_BAD_LINE.value, text_column=_TEXT_COLUMN.value)
    inputs = find_input_files(
        _INPUT_FILE.value, _INPUT_FORMAT.value, may_be_empty=corpus.keeps_going, no_text=[_OUTPUT_FILE.value]
    )
    if _TEXT_COLUMN.present:
        require_columns(inputs)
    files.check_output_files([_OUTPUT_FILE.value], "--output_file", {"--input_file": [file.path for file in inputs]})
    work_dir = f"{_OUTPUT_FILE.value}.work"
    if files.is_remote(work_dir):
        raise InputError(f"--output_file is {_OUTPUT_FILE.value}, but a local file is needed. Copy it from there.")
    folder = os.path.join(work_dir, "counts")
    splits = cut_into_splits(inputs, "record")
    jobs = [(pieces, corpus, _DO_LOWER_CASE.value, _MAX_WORDS.value) for pieces in splits]
    with (
        claimed(work_dir, "--output_file", "vocabulary", doing="does the same work", advice=""),
        Workers(_NUM_WORKERS.value or available_cores()) as workers,
    ):
        shutil.rmtree(folder, ignore_errors=True)  # after a crash, it may contain counts of another text
        parts = list(workers.map("words", count_words, folder, jobs, corpus_bytes(inputs), "B"))
        for message in bad_line_messages(counts["bad_lines"] for _, counts in parts):
            say(message)
        counter = add_up(parts, _MAX_WORDS.value)
        shutil.rmtree(work_dir)
    is_exact = "exact" if counter.error == 0 else f"too low by at most {counter.error}; rarer words may be missing"
    say(f"{len(counter.counts)} different words among {sum(counter.counts.values())}; counts are {is_exact}.")
    return counter


def cli() -> None:
    """Runs this module as a command."""
    program.run(main, required=["input_file", "output_file"])


if __name__ == "__main__":
    cli()
