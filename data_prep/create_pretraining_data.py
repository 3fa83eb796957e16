"""Makes pre-training data: TFRecords of masked sentence pairs from text.

By default, one or more processes read the text as a stream in bounded memory. The output depends only on the text, the
flags and the seed. With `--original_order`, the examples and their order are the original program's.
"""

from collections.abc import Mapping
from typing import Any

from bert_tf import program_flags
from bert_tf.data_report import examples as example_counts, findings
from bert_tf.runtime import files, path_checks, program, reporting
from bert_tf.runtime.errors import InputError, first_of
from bert_tf.runtime.messages import say
from bert_tf.runtime.parallel import available_cores
from data_prep.corpus.sample import report_sample
from data_prep.examples.original_order import write_original_examples
from data_prep.one_machine import PreparationConfig, prepare
from data_prep.options import DataOptions, LocalOptions, preparation_config

_DEFAULT_WORKER_MB = 400

REQUIRED = ("input_file", "output_file", "vocab_file")
_MAY_BE_EMPTY = 64
_SUMMARY = {
    "documents": "documents",
    "sentences": "sentences",
    "corpus_tokens": "tokens of the text",
    "records": "examples",
    "tokens": "tokens of the examples",
    "predictions": "masked tokens",
    "random_next": "examples with a random next sentence",
    "documents_of_one_sentence": "documents of one sentence (their next sentence is always random)",
    "empty_documents": "documents without tokens (skipped)",
    "long_sentences": "sentences longer than a sequence (truncated)",
    "lines_without_tokens": "lines without tokens (skipped)",
}


def make_data(options: DataOptions, local: LocalOptions) -> None:
    """Makes the data.

    Raises:
      InputError: if settings contradict each other, or the text or the output can't be used.
    """
    config = preparation_config(options, local.original_order)
    if not local.original_order and say_if_finished(config):
        return
    report_text(config, options)
    if local.original_order:
        tokenizer = config.tokenizer.make()
        paths = [file.path for file in config.inputs]
        counts = write_original_examples(paths, tokenizer, config.rules, config.examples, config.shards)
    else:
        work_dir = local.work_dir or f"{config.shards.paths[0]}.work"
        if files.is_remote(work_dir):
            raise InputError(f"--work_dir: {work_dir} is not a local directory. Use a local or mounted directory.")
        path_checks.check_output_directory(work_dir, "--work_dir")
        num_workers = local.num_workers or available_cores()
        memory_mb = local.memory_budget_mb or _DEFAULT_WORKER_MB * num_workers
        counts = prepare(config, work_dir, num_workers, memory_mb, keeps_tokens=bool(local.work_dir))
    say_summary(counts, config)


def report_text(config: PreparationConfig, options: DataOptions) -> None:
    """Reports unusual properties of a sample of the text. See `report_sample`."""
    tokenizer = config.tokenizer.make()
    needs_words = config.examples.policy.whole_word and not options.word_segmenter
    strips_accents = tokenizer.basic_tokenizer.strip_accents
    report_sample(config.inputs, config.corpus, strips_accents, options.allow_unusual_data, tokenizer, needs_words)


def say_if_finished(config: PreparationConfig) -> bool:
    """Returns True if all files exist. In this case, prints a message, and lists texts that may have changed since."""
    if not config.shards.are_finished():
        return False
    say("All output files already exist with the same settings. Delete them to regenerate.")
    _, made = files.stamp(config.shards.paths[0])
    if changed := [file.path for file in config.inputs if file.may_have_changed(made)]:
        say(
            f"Warning: {first_of(changed, 1)} was modified after {config.shards.paths[0]} was made. For texts above "
            "256 KB, only the size and eight samples are compared. If the text has changed, delete the files, and "
            "--work_dir if you set it."
        )
    return True


def say_summary(counts: Mapping[str, Any], config: PreparationConfig) -> None:
    """Prints the counts, the bad lines, the number of empty shards, and unusual counts."""
    shards, examples = config.shards, config.examples
    for message in counts.get("bad_lines", ()):
        say(message)
    rows = [{"count": counts[name], "of": label} for name, label in _SUMMARY.items() if counts.get(name)]
    say(reporting.table(rows))
    records = max(1, counts.get("records", 0))
    message = (
        f"tokens per example: {counts.get('tokens', 0) / records:.1f}; random next sentences: "
        f"{counts.get('random_next', 0) / records:.1%}"
    )
    if "predictions" in counts:
        message += f"; predictions per example: {counts['predictions'] / records:.2f}"
    message += f"; [UNK]: {counts.get('unknown', 0) / max(1, example_counts.text_tokens(counts)):.2%}"
    say(message)
    # With many examples, no shard is empty, because examples are assigned to shards by hash or round-robin.
    is_small = records <= _MAY_BE_EMPTY * len(shards.paths)
    if empty := is_small and sum(files.size(path) == 0 for path in shards.paths):
        say(f"{empty} of the {len(shards.paths)} files are empty, because there are few examples. Training skips them.")
    limit = examples.max_seq_length, examples.max_predictions_per_seq
    unusual = example_counts.unusual_counts(
        counts, "--input_file", "--max_predictions_per_seq", *limit, examples.policy.masked_lm_prob
    )
    random_next = example_counts.random_sentences(counts, examples.max_seq_length, config.corpus.split_sentences)
    findings.report([*unusual, *random_next], once=True)


def cli() -> None:
    """Runs this module as a command. Flags are defined here because `beam_pipeline` imports this module."""
    options = program_flags.SettingsFlags(DataOptions, **dict.fromkeys(REQUIRED))
    local = program_flags.SettingsFlags(LocalOptions)

    def main() -> None:
        program.check_needs()
        make_data(options.config(), local.config())

    program.run(main, required=REQUIRED)


if __name__ == "__main__":
    cli()
