"""Makes pre-training data: TFRecords of masked sentence pairs from text.

By default the text is streamed through one or more processes in bounded memory, and the output depends on text, flags
and seed only. `--original_order` makes the original program's examples in its order instead.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from absl import flags

from bert_tf.runtime import files, program, reporting
from bert_tf.runtime.files import InputError
from bert_tf.runtime.parallel import available_cores
from bert_tf.runtime.program import say
from bert_tf.sequences.example_format import Sidecar, vocabulary_hash
from bert_tf.sequences.masking import MaskingPolicy
from bert_tf.tokenization import FullTokenizer
from bert_tf.tokenization.tokenizer_config import (
    TOKENIZER_CONFIG_FILE,
    read_tokenizer_config,
    unusual_rules,
    validate_case_matches_settings,
)
from bert_tf.tokenization.vocabulary import check_vocab_file, load_vocab, validate_case_matches_vocab
from data_prep.corpus.files import HELP_INPUT_FORMAT, INPUT_FORMATS, corpus_bytes, find_input_files, require_columns
from data_prep.corpus.reader import DOCUMENTS, HELP_ON_BAD_LINE, ON_BAD_LINE, CorpusOptions
from data_prep.corpus.tokens import TokenizerOptions
from data_prep.examples.instances import SegmentRules
from data_prep.examples.original_order import write_reference_examples
from data_prep.examples.records import ExampleOptions, ShardSet, fingerprint
from data_prep.local import PreparationConfig, prepare

_TOOL_VERSION = 1
_DEFAULT_WORKER_MB = 400

program.section("Files, and how examples are made")
_INPUT_FILE = flags.DEFINE_string("input_file", None, "Text: files, globs and folders, separated by commas.")
_OUTPUT_FILE = flags.DEFINE_string("output_file", None, "TFRecord file, or files separated by commas.")
_NUM_SHARDS = flags.DEFINE_integer(
    "num_shards", 0, "Number of files NAME-00000-of-... to make from --output_file.", lower_bound=0
)
_VOCAB_FILE = flags.DEFINE_string("vocab_file", None, "Vocabulary file, one token per line.")
_DO_LOWER_CASE = flags.DEFINE_bool("do_lower_case", True, "For uncased models: convert to lower case, remove accents.")
_DO_WHOLE_WORD_MASK = flags.DEFINE_bool("do_whole_word_mask", False, "Mask all tokens of a word together.")
_MAX_SEQ_LENGTH = flags.DEFINE_integer("max_seq_length", 128, "Length of the sequences.")
_MAX_PREDICTIONS = flags.DEFINE_integer("max_predictions_per_seq", 20, "Largest number of masked tokens in a sequence.")
_RANDOM_SEED = flags.DEFINE_integer("random_seed", 12345, "Seed of all random choices.")
_DUPE_FACTOR = flags.DEFINE_integer(
    "dupe_factor",
    None,
    "Number of passes over the documents, with new random choices. Default: 10; 1 if unmasked.",
)
_MASKED_LM_PROB = flags.DEFINE_float("masked_lm_prob", MaskingPolicy.masked_lm_prob, "Share of masked tokens.")
_SHORT_SEQ_PROB = flags.DEFINE_float("short_seq_prob", 0.1, "Share of documents that make shorter sequences.")
program.section("Content of the records")
_OBJECTIVE = flags.DEFINE_enum("objective", "mlm_nsp", ["mlm_nsp", "ltr"], "ltr makes unmasked sequences (Table 5).")
_MASKING = flags.DEFINE_enum(
    "masking", "static", ["static", "dynamic"], "dynamic: run_pretraining.py masks sequences, differently in each step."
)
_MASKING_POLICY = flags.DEFINE_list(
    "masking_policy",
    f"{MaskingPolicy.mask},{MaskingPolicy.same},{MaskingPolicy.random}",
    "Shares of the masked tokens that become [MASK], stay the same, and become random (Table 8).",
)
_DRAW_PER_WORD = flags.DEFINE_bool(
    "replace_words_jointly", False, "Replace all tokens of a masked word in the same way."
)
_ORDINARY = flags.DEFINE_bool("no_special_replacements", False, "Exclude special and unused tokens as replacements.")
_WORD_SEGMENTER = flags.DEFINE_string(
    "word_segmenter", "", "module:function that splits a text into words, for --do_whole_word_mask, such as jieba:lcut."
)
program.section("Form of the text")
_INPUT_FORMAT = flags.DEFINE_enum("input_format", "auto", INPUT_FORMATS, HELP_INPUT_FORMAT)
_TEXT_COLUMN = flags.DEFINE_string("text_column", "text", "Name of the text in JSON lines and Parquet files.")
_DOCUMENTS = flags.DEFINE_enum(
    "documents",
    "auto",
    DOCUMENTS,
    "Unit that is a document. auto: a record in JSON lines and Parquet, text between blank lines elsewhere.",
)
_SPLIT_SENTENCES = flags.DEFINE_bool("split_sentences", False, "Lines are paragraphs: split them into sentences.")
_LANGUAGE = flags.DEFINE_string("language", "en", "Language (ISO code) of the rules that split sentences.")
_ON_BAD_LINE = flags.DEFINE_enum("on_bad_line", "clean", ON_BAD_LINE, HELP_ON_BAD_LINE)
# `beam_pipeline` does not have the flags from here on.
program.section("Order of the records")
_REFERENCE_ORDER = flags.DEFINE_bool("original_order", False, "Make the original program's examples in its order.")
program.section("Processes, which change no output")
_NUM_WORKERS = flags.DEFINE_integer("num_workers", 0, "Number of processes; 0 for one per core.", lower_bound=0)
_MEMORY_BUDGET_MB = flags.DEFINE_integer(
    "memory_budget_mb", 0, "Memory of all processes; 0 for 400 MB each.", lower_bound=0
)
_WORK_DIR = flags.DEFINE_string(
    "work_dir",
    None,
    "Folder of unfinished work and tokenized text. Default: a temporary one next to the output.",
)


# A text of paragraphs had 80% of random next sentences, and 56% when the paragraphs were split into sentences.
_MOST_RANDOM_NEXT = 0.65
_MAY_BE_EMPTY = 64
_NEEDED = {"language": "split_sentences", "word_segmenter": "do_whole_word_mask"}
# The flags that decide how tokens are masked.
_OF_MASKS = (_MASKED_LM_PROB, _DO_WHOLE_WORD_MASK, _MASKING, _MASKING_POLICY, _ORDINARY)
_RESOURCES = ("num_workers", "memory_budget_mb", "work_dir")
LOCAL = ("original_order", *_RESOURCES)
_NOT_IN_REFERENCE_ORDER = (
    *(
        "objective",
        "masking",
        "replace_words_jointly",
        "word_segmenter",
        "input_format",
        "documents",
        "split_sentences",
    ),
    *("on_bad_line", "text_column", *_RESOURCES),
)
_SUMMARY = {
    "documents": "documents",
    "sentences": "sentences",
    "corpus_tokens": "tokens of the text",
    "records": "examples",
    "tokens": "tokens of the examples",
    "predictions": "masked tokens",
    "random_next": "examples with a random next sentence",
    "documents_of_one_sentence": "documents of one sentence (their next sentence is always random)",
    "empty_documents": "documents without tokens (left out)",
    "long_sentences": "sentences longer than a sequence (cut)",
    "lines_without_tokens": "lines without tokens (left out)",
}


def main() -> None:
    """Makes the data that the flags describe."""
    config = preparation_config(_REFERENCE_ORDER.value)
    if _REFERENCE_ORDER.value:
        for name in _NOT_IN_REFERENCE_ORDER:
            if flags.FLAGS[name].value != flags.FLAGS[name].default:
                raise InputError("not used with --original_order. Omit it.", f"--{name}")
        tokenizer = FullTokenizer(config.tokenizer.vocab_file, config.tokenizer.do_lower_case)
        paths = [file.path for file in config.inputs]
        counts = write_reference_examples(paths, tokenizer, config.rules, config.examples, config.shards)
    elif say_if_finished(config):
        return
    else:
        work_dir = _WORK_DIR.value or f"{config.shards.paths[0]}.work"
        if files.is_remote(work_dir):
            raise InputError(f"--work_dir: {work_dir} is not a local folder. Use a local or mounted folder.")
        num_workers = _NUM_WORKERS.value or available_cores()
        memory_mb = _MEMORY_BUDGET_MB.value or _DEFAULT_WORKER_MB * num_workers
        counts = prepare(config, work_dir, num_workers, memory_mb, keeps_tokens=bool(_WORK_DIR.value))
    say_summary(counts, config.shards)


def preparation_config(original_order: bool = False) -> PreparationConfig:
    """Checks the flags and returns the configuration that they describe.

    Raises:
      InputError: if a file or a value can't be used.
    """
    program.require_together(_NEEDED)
    _check_vocabulary(warn_of_casing=original_order)
    tokenizer = TokenizerOptions(_VOCAB_FILE.value, _DO_LOWER_CASE.value, _WORD_SEGMENTER.value)
    corpus = CorpusOptions(
        documents=_DOCUMENTS.value,
        split_sentences=_SPLIT_SENTENCES.value,
        language=_LANGUAGE.value,
        on_bad_line=_ON_BAD_LINE.value,
        text_column=_TEXT_COLUMN.value,
    )
    rules, examples = _rules(), _examples()
    inputs = find_input_files(
        _INPUT_FILE.value,
        _INPUT_FORMAT.value,
        as_released=original_order,
        may_be_empty=corpus.keeps_going,
        no_text=[_VOCAB_FILE.value],
    )
    if _TEXT_COLUMN.present:
        require_columns(inputs)
    settings = {
        "tool_version": _TOOL_VERSION,
        "original_order": original_order,
        "objective": _OBJECTIVE.value,
        "masking": _MASKING.value,
        "masking_policy": dataclasses.asdict(examples.policy),
        "do_lower_case": _DO_LOWER_CASE.value,
        "word_segmenter": _WORD_SEGMENTER.value,
        "random_seed": rules.random_seed,
        "dupe_factor": rules.dupe_factor,
        "short_seq_prob": rules.short_seq_prob,
        "corpus": dataclasses.asdict(corpus),
        "input_files": len(inputs),
        "input_bytes": corpus_bytes(inputs),
        "input_sha256": fingerprint([file.content for file in inputs]),
    }
    paths = _output_paths()
    read = {"--input_file": [file.path for file in inputs], "--vocab_file": [_VOCAB_FILE.value]}
    files.check_output_files([*paths, *map(Sidecar.path_of, paths)], "--output_file", read)
    shards = ShardSet(paths, examples.features, vocabulary_hash(_VOCAB_FILE.value), settings)
    return PreparationConfig(inputs, corpus, tokenizer, rules, examples, shards)


def _check_vocabulary(warn_of_casing: bool) -> None:
    """Checks the vocabulary and --do_lower_case; a wrong casing is an error, or only a warning."""
    check_vocab_file(_VOCAB_FILE.value)
    values = read_tokenizer_config(_VOCAB_FILE.value)
    if rules := unusual_rules(values):
        raise InputError(
            f"{TOKENIZER_CONFIG_FILE} next to {_VOCAB_FILE.value} has {rules}, but pre-training data are made with the "
            "original rules only. Copy the vocabulary to another folder to use it with those.",
            "--vocab_file",
        )
    try:
        validate_case_matches_vocab(_DO_LOWER_CASE.value, load_vocab(_VOCAB_FILE.value))
        validate_case_matches_settings(_DO_LOWER_CASE.value, values, _VOCAB_FILE.value)
    except InputError as error:
        if not warn_of_casing:
            raise
        say(f"Warning: {error}")


def _output_paths() -> tuple[str, ...]:
    paths = [path.strip() for path in _OUTPUT_FILE.value.split(",") if path.strip()]
    if not paths or len(set(paths)) < len(paths):
        raise InputError(f"{_OUTPUT_FILE.value!r} is empty or names a file twice.", "--output_file")
    if not _NUM_SHARDS.value:
        return tuple(paths)
    if len(paths) > 1:
        raise InputError(
            f"--output_file names {len(paths)} files. Give one name, or omit --num_shards.", "--num_shards"
        )
    return tuple(f"{paths[0]}-{i:05d}-of-{_NUM_SHARDS.value:05d}" for i in range(_NUM_SHARDS.value))


def _rules() -> SegmentRules:
    dupe_factor = _DUPE_FACTOR.value
    if dupe_factor is None:
        dupe_factor = 10 if _is_masked_here() else 1
    return SegmentRules(_MAX_SEQ_LENGTH.value, _SHORT_SEQ_PROB.value, dupe_factor, _RANDOM_SEED.value)


def _is_masked_here() -> bool:
    return _OBJECTIVE.value != "ltr" and _MASKING.value == "static"


def _examples() -> ExampleOptions:
    try:
        mask, same, random = map(float, _MASKING_POLICY.value)
    except ValueError:
        raise InputError(
            f"{','.join(_MASKING_POLICY.value)!r} is not three numbers, such as 0.8,0.1,0.1.", "--masking_policy"
        ) from None
    if _OBJECTIVE.value == "ltr":
        for flag in _OF_MASKS:
            if flag.present:
                raise InputError("not used with --objective=ltr, which masks no tokens. Omit it.", f"--{flag.name}")
    elif _MASKING.value == "dynamic" and _MAX_PREDICTIONS.present:
        raise InputError(
            "not used with --masking=dynamic. Omit it here, and pass it to run_pretraining.py, which masks the tokens.",
            f"--{_MAX_PREDICTIONS.name}",
        )
    policy = MaskingPolicy(
        mask,
        same,
        random,
        masked_lm_prob=_MASKED_LM_PROB.value,
        whole_word=_DO_WHOLE_WORD_MASK.value,
        replace_words_jointly=_DRAW_PER_WORD.value,
        no_special_replacements=_ORDINARY.value,
    )
    return ExampleOptions(
        _MAX_SEQ_LENGTH.value, _MAX_PREDICTIONS.value, _is_masked_here(), policy, bool(_WORD_SEGMENTER.value)
    )


def say_if_finished(config: PreparationConfig) -> bool:
    """Returns whether all files exist already. If so, prints this, and texts that may have changed since."""
    if not config.shards.are_finished():
        return False
    say("All files are there already, made with these settings. Remove them to make them again.")
    _, made = files.stamp(config.shards.paths[0])
    if changed := [file.path for file in config.inputs if file.may_have_changed(made)]:
        more = f" and {len(changed) - 1} more" * (len(changed) > 1)
        say(
            f"Warning: {changed[0]}{more} was written later than {config.shards.paths[0]}. Of texts above 256 KB, only "
            "the size and eight samples are compared. If the text has changed, remove the files, and --work_dir if you "
            "set it."
        )
    return True


def say_summary(counts: Mapping[str, Any], shards: ShardSet) -> None:
    """Prints the counts of a preparation, its bad lines, and the number of empty shards."""
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
    say(message)
    # With more examples per shard, none is empty: examples are spread by hashes, or in turn.
    is_small = records <= _MAY_BE_EMPTY * len(shards.paths)
    if empty := is_small and sum(files.size(path) == 0 for path in shards.paths):
        say(f"{empty} of the {len(shards.paths)} files are empty, because there are few examples. Training skips them.")
    random_next = counts.get("random_next", 0) / records
    if random_next > _MOST_RANDOM_NEXT:
        remedy = "If lines are paragraphs, pass --split_sentences (and --language)."
        if _SPLIT_SENTENCES.value:
            remedy = "Set a larger --max_seq_length, or see --documents."
        say(
            f"Warning: {random_next:.0%} of the examples have a random next sentence; about 50% are expected. A line "
            f"that fills a sequence, or is a complete document, has no true next sentence. {remedy}"
        )


def cli() -> None:
    """Runs this module as a command."""
    program.run(main, required=["input_file", "output_file", "vocab_file"])


if __name__ == "__main__":
    cli()
