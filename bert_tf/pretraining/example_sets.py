"""Finds the examples of a run, and checks that they match the model and the vocabulary before training starts."""

import collections
import dataclasses
from collections.abc import Mapping
from typing import Any

from bert_tf.checkpoints import pretrained
from bert_tf.config import BertConfig
from bert_tf.data_report import examples as example_counts, findings
from bert_tf.pretraining import record_shards
from bert_tf.pretraining.pretraining_config import PretrainingData
from bert_tf.pretraining.record_shards import Shard
from bert_tf.runtime.files import InputError
from bert_tf.sequences.example_format import Feature, Metadata, names
from bert_tf.sequences.graph_masking import BatchMasker
from bert_tf.sequences.masking import MaskingPolicy, MaskingVocabulary
from bert_tf.text.tokenizer_config import find_rules
from bert_tf.text.vocabulary import check_vocab_file, load_vocab


@dataclasses.dataclass(frozen=True)
class ExampleSet:
    """A set of checked examples of the same length.

    Attributes:
      shards: the files.
      features: the features in each record.
      masker: masks the examples while they are read; None if they are already masked or no masks are needed.
      flag_name: the flag that gave the files.
    """

    shards: list[Shard]
    features: tuple[Feature, ...]
    masker: BatchMasker | None
    flag_name: str = "--input_file"

    @property
    def counts(self) -> dict[str, int]:
        """The summed counts in the metadata files; empty for files of the original code."""
        counts: collections.Counter[str] = collections.Counter()
        for shard in self.shards:
            counts.update(shard.metadata.counts if shard.metadata else {})
        return dict(counts)

    def report(self, data: PretrainingData, allows_errors: bool) -> None:
        """Reports unknown tokens and missing masks. See `findings.report`."""
        share = (record_shards.masking_settings(self.shards[0]) or {}).get("masked_lm_prob", 0)
        limit = data.predictions_flag, data.max_seq_length, data.max_predictions_per_seq
        findings.report(example_counts.unusual_counts(self.counts, data.flag_name, *limit, share), allows_errors)

    @property
    def records(self) -> int:
        """The number of examples."""
        return sum(shard.records for shard in self.shards)

    def identity(self) -> dict[str, Any]:
        """Returns a description that identifies the examples and their masking. Reads a few bytes of every file."""
        return {
            "files": record_shards.identities(self.shards),
            "lengths": {feature.name: feature.length for feature in self.features},
            **({"masking": self.masker.settings()} if self.masker else {}),
        }


class ExampleFinder:
    """Finds the examples for a model, and checks them.

    Args:
      config: the config of the encoder.
      objective: see `PretrainingModel`.
      vocab_file: the vocabulary that the data was made with; "" if unknown.
      seed: the seed of the masks, for data that is masked while it is read.
      model_directory: the directory of the model that training starts from or resumes; None if there is none.

    Attributes:
      rules: the tokenizer rules of all data found so far; None if the vocabulary is unknown.

    Raises:
      InputError: if the vocabulary can't be used, or does not match the config.
    """

    def __init__(
        self, config: BertConfig, objective: str, vocab_file: str, seed: int, model_directory: str | None = None
    ) -> None:
        self._config = config
        self._objective = objective
        self._vocab_file = vocab_file
        self._seed = seed
        self._model_directory = model_directory
        self._records: list[tuple[str, Mapping[str, Any]]] = []
        self.rules: dict[str, bool] | None = None
        if vocab_file:
            check_vocab_file(vocab_file)
            config.check_vocabulary(len(load_vocab(vocab_file)), vocab_file)
            self._records = pretrained.tokenizer_records(model_directory, vocab_file)

    def find(self, data: PretrainingData) -> ExampleSet:
        """Finds the examples described by the flags.

        Raises:
          InputError: if data, vocabulary, config and objective do not match.
        """
        self._config.check_sequence_length(data.max_seq_length)
        lengths = (data.max_seq_length, data.max_predictions_per_seq)
        shards = record_shards.find_shards(
            data.input_file,
            *lengths,
            self._config.vocab_size,
            flag_name=data.flag_name,
            needs_next_sentence=self._objective == "mlm_nsp",
        )
        if self._vocab_file:
            self._find_rules(shards)
        features = record_shards.record_features(shards, data.flag_name)
        is_masked = "masked_lm_ids" in names(features)
        masker = None if is_masked or self._objective == "ltr" else self._masker(data, shards)
        limits = dict.fromkeys(("input_ids", "masked_lm_ids"), self._config.vocab_size)
        limits["segment_ids"] = self._config.type_vocab_size
        limited = tuple(dataclasses.replace(feature, limit=limits.get(feature.name)) for feature in features)
        return ExampleSet(shards, limited, masker, data.flag_name)

    def _find_rules(self, shards: list[Shard]) -> None:
        """Finds the tokenizer rules, which must be the same for all data. See `tokenizer_config.find_rules`."""
        for shard in shards:
            if shard.tokenizer and shard.tokenizer not in [record for _, record in self._records]:
                self._records.append((Metadata.path_of(shard.path), shard.tokenizer))
        self.rules = find_rules(self._vocab_file, self._records, directory=self._model_directory)

    def _masker(self, data: PretrainingData, shards: list[Shard]) -> BatchMasker:
        for shard in shards:
            if shard.metadata.settings.get("objective") == "ltr":
                raise InputError(
                    f"{data.flag_name}: {shard.path} was made with --objective=ltr, but --objective is "
                    f"{self._objective}. Set --objective=ltr, or regenerate the data with --masking=dynamic or "
                    "static masks."
                )
        if not self._vocab_file:
            raise InputError(
                f"{data.flag_name}: {data.input_file} is unmasked data. Pass --vocab_file with the vocabulary that the "
                "data was made with."
            )
        try:
            policy = MaskingPolicy(**(record_shards.masking_settings(shards[0]) or {"masking_policy": None}))
        except (InputError, TypeError) as error:
            path = Metadata.path_of(shards[0].path)
            raise InputError(
                f"{data.flag_name}: {path} has no usable masking policy ({error}). Regenerate the data."
            ) from None
        most, length, share = data.max_predictions_per_seq, data.max_seq_length, policy.masked_lm_prob
        flags = data.predictions_flag, data.flag_name
        findings.report(example_counts.missing_masks(most, length, share, length, most, *flags), once=True)
        vocabulary = MaskingVocabulary.of(load_vocab(self._vocab_file), policy.no_special_replacements)
        return BatchMasker(policy, vocabulary, most, self._seed)
