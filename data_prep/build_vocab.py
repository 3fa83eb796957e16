"""Learns a WordPiece vocabulary from text.

The text is split into words like in the tokenizer, so the vocabulary fits the words that the tokenizer looks up. The
file has the special tokens, the reserved and unused tokens, the alphabet, and all other tokens by descending frequency.
"""

import contextlib
import os
import shutil
import tempfile

from bert_tf import program_flags
from bert_tf.runtime import files, path_checks, program
from bert_tf.runtime.files import InputError
from bert_tf.runtime.messages import say
from bert_tf.runtime.parallel import available_cores
from bert_tf.runtime.storage.locks import claimed
from bert_tf.text.added_tokens import AddedToken, added_tokens_decoder
from bert_tf.text.vocabulary import SPECIAL_TOKENS
from data_prep.corpus.files import corpus_bytes, cut_into_splits, find_input_files, require_columns
from data_prep.corpus.reader import CorpusOptions, bad_line_messages
from data_prep.corpus.sample import report_sample
from data_prep.corpus.word_counts import BoundedCounter, add_up, count_words
from data_prep.corpus.wordpiece_learner import learn_vocabulary
from data_prep.options import VocabularyOptions
from data_prep.workers import Workers

_OPTIONS = program_flags.SettingsFlags(VocabularyOptions, "data_prep.build_vocab", input_file=None, output_file=None)


def main() -> None:
    """Counts words, learns the vocabulary, and writes it."""
    options = _OPTIONS.config()
    first = _first_tokens(options)
    counter = _count_words(options)
    vocabulary = learn_vocabulary(counter.counts, options.vocab_size, first, options.max_alphabet)
    with files.replacing(options.output_file) as writer:
        writer.writelines(f"{token}\n" for token in vocabulary)
    _write_rules(options, first)
    say(f"{options.output_file}: {len(vocabulary)} tokens.")
    if len(vocabulary) < options.vocab_size:
        say(f"Warning: the text has too few distinct words for --vocab_size={options.vocab_size} tokens.")


def _write_rules(options: VocabularyOptions, first: list[str]) -> None:
    """Writes the rules that are not visible in the vocabulary: kept accents, and tokens that are never split."""
    rules, tokens = options.rules, options.kept_tokens
    if tokens or rules["strip_accents"] != rules["do_lower_case"] or files.exists(options.config_file):
        decoder = added_tokens_decoder({token: AddedToken(first.index(token)) for token in tokens})
        files.write_json(options.config_file, {**rules, "added_tokens_decoder": decoder})


def _first_tokens(options: VocabularyOptions) -> list[str]:
    if files.exists(options.config_file) and not files.exists(options.output_file):
        raise InputError(
            f"--output_file: {options.config_file} has the rules of another vocabulary. Use another directory."
        )
    first = [*SPECIAL_TOKENS, *options.kept_tokens, *(f"[unused{i}]" for i in range(options.num_unused))]
    for token in first:
        if first.count(token) > 1 or not token or token != "".join(token.split()):
            raise InputError(
                f"--reserved_tokens: {token!r} is empty, contains white space, or occurs twice. Remove it. The special "
                "tokens and [unusedN] are added automatically."
            )
    return first


def _count_words(options: VocabularyOptions) -> BoundedCounter:
    corpus = options.corpus
    inputs = find_input_files(
        options.input_file, options.input_format, may_be_empty=corpus.keeps_going, no_text=[options.output_file]
    )
    if corpus.text_column != CorpusOptions().text_column:
        require_columns(inputs)
    paths = [file.path for file in inputs]
    path_checks.check_output_files([options.output_file], "--output_file", {"--input_file": paths})
    report_sample(inputs, corpus, options.rules["strip_accents"], options.allow_unusual_data)
    splits = cut_into_splits(inputs, "record")
    rules = {**options.rules, "kept_tokens": options.kept_tokens}
    jobs = [(pieces, corpus, rules, options.max_words) for pieces in splits]
    local = contextlib.nullcontext(f"{options.output_file}.work")
    with (
        # The processes share files on the local disk.
        tempfile.TemporaryDirectory() if files.is_remote(options.output_file) else local as work_dir,
        claimed(work_dir, "--output_file", "vocabulary", doing="does the same work", advice=""),
        contextlib.ExitStack() as stack,
    ):
        stack.callback(shutil.rmtree, work_dir, ignore_errors=True)
        workers = stack.enter_context(Workers(options.num_workers or available_cores()))
        counts_dir = os.path.join(work_dir, "counts")
        shutil.rmtree(counts_dir, ignore_errors=True)  # after a crash, it may contain counts of other text
        parts = list(workers.map("words", count_words, counts_dir, jobs, corpus_bytes(inputs), "B"))
        for message in bad_line_messages(counts["bad_lines"] for _, counts in parts):
            say(message)
        counter = add_up(parts, options.max_words)
    is_exact = "exact" if counter.error == 0 else f"too low by at most {counter.error}; rarer words may be missing"
    say(f"{len(counter.counts)} distinct words, {sum(counter.counts.values())} in total; counts are {is_exact}.")
    return counter


def cli() -> None:
    """Runs this module as a command."""
    program.run(main, required=["input_file", "output_file"])


if __name__ == "__main__":
    cli()
