"""The examples that a run trains on, checked against model and vocabulary before anything runs."""

import dataclasses

from bert_tf.config import BertConfig
from bert_tf.pretraining import record_shards
from bert_tf.pretraining.record_shards import Shard
from bert_tf.runtime.files import InputError
from bert_tf.sequences.example_format import Feature, pretraining_features, vocabulary_hash
from bert_tf.sequences.graph_masking import BatchMasker
from bert_tf.sequences.masking import MaskingPolicy, MaskingVocabulary
from bert_tf.tokenization.vocabulary import check_vocab_file, load_vocab


@dataclasses.dataclass(frozen=True)
class PretrainingData:
    """Examples of one length, as the user names them.

    Attributes:
      input_file: TFRecord files: names and globs, separated by commas.
      max_seq_length: length of their sequences.
      max_predictions_per_seq: length of their masked-LM lists.
      flag_name: the flag that names the files, for messages.
    """

    input_file: str
    max_seq_length: int
    max_predictions_per_seq: int
    flag_name: str = "--input_file"


@dataclasses.dataclass(frozen=True)
class ExampleSet:
    """Examples of one length that were found.

    Attributes:
      shards: their files.
      features: what their records hold.
      masker: what masks them as they are read; None if they are masked already, or not to be.
    """

    shards: list[Shard]
    features: tuple[Feature, ...]
    masker: BatchMasker | None

    @property
    def records(self) -> int:
        """How many examples there are."""
        return sum(shard.records for shard in self.shards)


class ExampleFinder:
    """Finds the examples for a model.

    Args:
      config: of the encoder.
      objective: see `PretrainingModel`.
      vocab_file: what the data was made with; "" if it isn't known.
      seed: of the masks, where sequences are masked as they are read.

    Raises:
      InputError: if the vocabulary can't be used, or doesn't fit the config.
    """

    def __init__(self, config: BertConfig, objective: str, vocab_file: str, seed: int) -> None:
        self._config = config
        self._objective = objective
        self._vocab_file = vocab_file
        self._seed = seed
        self._vocab_sha256 = None
        if vocab_file:
            check_vocab_file(vocab_file)
            config.check_vocabulary(len(load_vocab(vocab_file)), vocab_file)
            self._vocab_sha256 = vocabulary_hash(vocab_file)

    def find(self, data: PretrainingData) -> ExampleSet:
        """The examples that are named.

        Raises:
          InputError: if data, vocabulary, config and objective don't fit together.
        """
        self._config.check_sequence_length(data.max_seq_length)
        lengths = (data.max_seq_length, data.max_predictions_per_seq)
        shards = record_shards.find_shards(
            data.input_file, *lengths, self._config.vocab_size, self._vocab_sha256, data.flag_name
        )
        features = record_shards.record_features(shards, *lengths, data.flag_name)
        is_masked = features == pretraining_features(*lengths)
        masker = None if is_masked or self._objective == "ltr" else self._masker(data, shards)
        return ExampleSet(shards, features, masker)

    def _masker(self, data: PretrainingData, shards: list[Shard]) -> BatchMasker:
        for shard in shards:
            if shard.sidecar.settings.get("objective") == "ltr":
                raise InputError(
                    f"{data.flag_name}: {shard.path} was made with --objective=ltr, but --objective is "
                    f"{self._objective}. Set --objective=ltr, or make the data anew with --masking=dynamic or with "
                    "masks."
                )
        if not self._vocab_file:
            raise InputError(
                f"{data.flag_name}: {data.input_file} is unmasked data, to be masked while it is read, which needs "
                "--vocab_file (the one that the data was made with)."
            )
        policy = MaskingPolicy(**record_shards.masking_settings(shards[0]))
        vocabulary = MaskingVocabulary.of(load_vocab(self._vocab_file), policy.ordinary_replacements)
        return BatchMasker(policy, vocabulary, data.max_predictions_per_seq, self._seed)
