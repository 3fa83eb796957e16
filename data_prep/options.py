"""The settings of the programs that make pre-training data."""

import os
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from bert_tf.data_report import examples as example_counts, findings
from bert_tf.data_report.findings import AllowUnusualData
from bert_tf.runtime import path_checks
from bert_tf.runtime.errors import InputError
from bert_tf.runtime.settings import Condition, Settings, about, not_with, only_with
from bert_tf.sequences.example_format import Metadata
from bert_tf.sequences.masking import MaskingPolicy
from bert_tf.text import BasicTokenizer
from bert_tf.text.added_tokens import token_list
from bert_tf.text.tokenizer_config import find_rules
from bert_tf.text.vocabulary import TOKENIZER_CONFIG_FILE, check_vocab_file, vocabulary_hash
from data_prep.corpus.files import HELP_INPUT_FORMAT, InputFormat, corpus_bytes, find_input_files, require_columns
from data_prep.corpus.reader import CorpusOptions
from data_prep.corpus.tokens import TokenizerOptions
from data_prep.examples.instances import SegmentRules
from data_prep.examples.records import ExampleOptions, ShardSet, digest_of_values
from data_prep.one_machine import PreparationConfig

_TOOL_VERSION = 1
_MAX_PREDICTIONS = 20
_MASKED, _NOT_ORIGINAL = only_with("objective", values=("mlm_nsp",)), not_with("original_order")


class VocabularyOptions(Settings, frozen=True, kw_only=True):
    """The settings of a vocabulary.

    Attributes:
      max_alphabet: maximum number of distinct characters. Words that contain other characters are skipped.
    """

    input_file: Annotated[
        str,
        about("Text files: names, glob patterns and directories, separated by commas.", group="Text and vocabulary"),
    ]
    output_file: Annotated[str, about("Vocabulary file to write, one token per line.")]
    vocab_size: Annotated[int, about("Number of tokens, including special ones.")] = 30522
    do_lower_case: Annotated[bool, about("For uncased models: convert to lower case and remove accents.")] = True
    strip_accents: Annotated[bool, about("Remove accents. Default: the same as --do_lower_case.")] | None = None
    reserved_tokens: Annotated[tuple[str, ...], about("Tokens that are never split; or a file with one per line.")] = ()
    num_unused: Annotated[int, about("Number of [unusedN] tokens, which can be replaced later.", ge=0)] = 0
    max_alphabet: Annotated[
        int, about("Maximum number of distinct characters; 0: 1000, or more to cover 99.95% of the text.", ge=0)
    ] = 0
    max_words: Annotated[int, about("Maximum number of distinct words in memory per process.", ge=1)] = 1_000_000
    input_format: Annotated[InputFormat, about(HELP_INPUT_FORMAT, group="Form of the text")] = "auto"
    corpus: CorpusOptions = CorpusOptions("record")
    allow_unusual_data: AllowUnusualData = False
    num_workers: Annotated[int, about("Number of processes; 0 for one per core.", ge=0)] = 0

    @property
    def kept_tokens(self) -> list[str]:
        """The tokens that are never split."""
        return token_list(self.reserved_tokens, "--reserved_tokens")

    @property
    def rules(self) -> dict[str, bool]:
        """The arguments of `BasicTokenizer`."""
        return vars(BasicTokenizer(self.do_lower_case, self.strip_accents))

    @property
    def config_file(self) -> str:
        """The file with the rules of the tokenizer."""
        return os.path.join(os.path.dirname(self.output_file), TOKENIZER_CONFIG_FILE)


class DataOptions(Settings, frozen=True, kw_only=True):
    """The settings that determine the records, on one or many machines.

    Attributes:
      objective: ltr makes unmasked sequences (paper, Table 5).
      masking: with "dynamic", `run_pretraining.py` masks the sequences differently in each step.
    """

    input_file: Annotated[
        str, about("Text files: names, glob patterns and directories, separated by commas.", group="Files and examples")
    ]
    output_file: Annotated[str, about("TFRecord file to write, or several separated by commas.")]
    num_shards: Annotated[int, about("Number of files OUTPUT_FILE-00000-of-... to write.", ge=0)] = 0
    vocab_file: Annotated[str, about("Vocabulary file, one token per line.")]
    do_lower_case: (
        Annotated[bool, about("True for uncased models, False for cased ones. Default: from the vocabulary.")] | None
    ) = None
    strip_accents: Annotated[bool, about("Remove accents. Default: the same as --do_lower_case.")] | None = None
    rules: SegmentRules = SegmentRules()
    max_predictions_per_seq: Annotated[int, about("Largest number of masked tokens per sequence.", ge=1)] = (
        _MAX_PREDICTIONS
    )
    dupe_factor: Annotated[
        int | None, about("Passes over the documents with new random choices. Default: 10, or 1 if unmasked.")
    ] = None
    objective: Annotated[
        Literal["mlm_nsp", "ltr"],
        about("ltr makes unmasked sequences for a left-to-right model.", group="Content of the records"),
        _NOT_ORIGINAL,
    ] = "mlm_nsp"
    masking: Annotated[
        Literal["static", "dynamic"],
        about("dynamic: mask the tokens during training, differently in each step."),
        _MASKED,
        _NOT_ORIGINAL,
    ] = "static"
    masking_policy: Annotated[
        tuple[float, ...],
        Meta(min_length=3, max_length=3),
        about("Fractions of masked tokens that become [MASK], stay unchanged, and become random (Table 8)."),
        _MASKED,
    ] = (0.8, 0.1, 0.1)
    masks: MaskingPolicy = MaskingPolicy()
    word_segmenter: Annotated[
        str,
        about("module:function that splits text into words, such as jieba:lcut; spaces: split at white space."),
        only_with("do_whole_word_mask"),
        _NOT_ORIGINAL,
    ] = ""
    input_format: Annotated[InputFormat, about(HELP_INPUT_FORMAT, group="Form of the text"), _NOT_ORIGINAL] = "auto"
    corpus: CorpusOptions = CorpusOptions()
    allow_unusual_data: AllowUnusualData = False

    @property
    def is_masked(self) -> bool:
        """Whether the records are masked."""
        return self.objective != "ltr" and self.masking == "static"

    @property
    def segment_rules(self) -> SegmentRules:
        """The rules for segments, including the number of passes."""
        passes = self.dupe_factor
        return self.rules.replace(dupe_factor=(10 if self.is_masked else 1) if passes is None else passes)

    def example_options(self) -> ExampleOptions:
        """Returns the content of a record.

        Raises:
          InputError: if a setting is given that has no effect.
        """
        self.check_needs()
        is_default = self.max_predictions_per_seq == _MAX_PREDICTIONS
        if self.objective != "ltr" and self.masking == "dynamic" and not is_default:
            raise InputError(
                "has no effect with --masking=dynamic. Omit it here, and pass it to run_pretraining.py, which masks "
                "the tokens.",
                "--max_predictions_per_seq",
            )
        most = max(1, round(self.rules.max_seq_length * self.masks.masked_lm_prob))
        if self.is_masked:
            limit = self.max_predictions_per_seq, "--max_predictions_per_seq"
            findings.report(example_counts.unused_predictions(most, *limit))
        policy = self.masks.replace(**dict(zip(("mask", "same", "random"), self.masking_policy, strict=True)))
        return ExampleOptions(
            self.rules.max_seq_length, self.max_predictions_per_seq, self.is_masked, policy, bool(self.word_segmenter)
        )

    def output_paths(self) -> tuple[str, ...]:
        """Returns the files to write.

        Raises:
          InputError: if their names can't be used.
        """
        paths = [path.strip() for path in self.output_file.split(",") if path.strip()]
        if not paths or len(set(paths)) < len(paths):
            raise InputError(f"{self.output_file!r} is empty or has a file twice. Correct it.", "--output_file")
        if not self.num_shards:
            return tuple(paths)
        if len(paths) > 1:
            raise InputError(
                f"--output_file has {len(paths)} files. Pass one name, or omit --num_shards.", "--num_shards"
            )
        return tuple(f"{paths[0]}-{i:05d}-of-{self.num_shards:05d}" for i in range(self.num_shards))

    def tokenizer(self) -> TokenizerOptions:
        """Returns the settings of the tokenizer. Checks the vocabulary, and reads the rules that are stored with it."""
        check_vocab_file(self.vocab_file)
        rules = find_rules(self.vocab_file, do_lower_case=self.do_lower_case, strip_accents=self.strip_accents)
        return TokenizerOptions(self.vocab_file, word_segmenter=self.word_segmenter, **rules)


class LocalOptions(Settings, frozen=True):
    """The settings of `one_machine`. The number of processes and the memory do not change the output."""

    needs: ClassVar[tuple[Condition, ...]] = (_NOT_ORIGINAL,)

    original_order: Annotated[
        bool, about("Make the original program's examples in the original order.", group="Order of the records")
    ] = False
    num_workers: Annotated[
        int, about("Number of processes; 0 for one per core.", ge=0, group="Processes, which do not change the output")
    ] = 0
    memory_budget_mb: Annotated[int, about("Memory of all processes in MB; 0 for 400 per process.", ge=0)] = 0
    work_dir: Annotated[
        str, about("Directory for unfinished work and tokenized text. Default: a temporary one next to the output.")
    ] = ""


def preparation_config(options: DataOptions, original_order: bool = False) -> PreparationConfig:
    """Checks the settings, finds the files, and returns the settings that determine the examples.

    Raises:
      InputError: if a file or a value can't be used.
    """
    tokenizer = options.tokenizer()
    corpus, rules, examples = options.corpus, options.segment_rules, options.example_options()
    inputs = find_input_files(
        options.input_file,
        options.input_format,
        as_original=original_order,
        may_be_empty=corpus.keeps_going,
        no_text=[options.vocab_file],
    )
    if corpus.text_column != CorpusOptions().text_column:
        require_columns(inputs)
    settings = {
        "tool_version": _TOOL_VERSION,
        "original_order": original_order,
        "objective": options.objective,
        "masking": options.masking,
        "masking_policy": examples.policy.to_dict(),
        "do_lower_case": tokenizer.do_lower_case,
        "tokenizer": tokenizer.make().record,
        "word_segmenter": options.word_segmenter,
        "random_seed": rules.random_seed,
        "dupe_factor": rules.dupe_factor,
        "short_seq_prob": rules.short_seq_prob,
        "corpus": corpus.record,
        "input_files": len(inputs),
        "input_bytes": corpus_bytes(inputs),
        "input_sha256": digest_of_values([file.content for file in inputs]),
    }
    paths = options.output_paths()
    read = {"--input_file": [file.path for file in inputs], "--vocab_file": [options.vocab_file]}
    path_checks.check_output_files([*paths, *map(Metadata.path_of, paths)], "--output_file", read)
    shards = ShardSet(paths, examples.features, vocabulary_hash(options.vocab_file), settings)
    return PreparationConfig(inputs, corpus, tokenizer, rules, examples, shards)
