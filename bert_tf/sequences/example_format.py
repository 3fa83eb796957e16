"""What a record holds and what its shard's sidecar says; written by `data_prep`, read by the input pipeline.

One specification serves both directions. It knows nothing of TensorFlow until a record is serialised or parsed.
"""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bert_tf.runtime import files
from bert_tf.runtime.files import InputError

if TYPE_CHECKING:
    import tensorflow as tf

SIDECAR_SUFFIX = ".meta.json"
FORMAT_VERSION = 1


@dataclasses.dataclass(frozen=True)
class Feature:
    """One entry of a record.

    Attributes:
      name: the release's.
      length: how many numbers.
      is_float: floats rather than integers.
    """

    name: str
    length: int
    is_float: bool = False


def pretraining_features(max_seq_length: int, max_predictions_per_seq: int) -> tuple[Feature, ...]:
    """A pre-training example, as the release's create_pretraining_data.py writes it."""
    return (
        Feature("input_ids", max_seq_length),
        Feature("input_mask", max_seq_length),
        Feature("segment_ids", max_seq_length),
        Feature("masked_lm_positions", max_predictions_per_seq),
        Feature("masked_lm_ids", max_predictions_per_seq),
        Feature("masked_lm_weights", max_predictions_per_seq, is_float=True),
        Feature("next_sentence_labels", 1),
    )


def unmasked_features(max_seq_length: int, word_starts: bool = False) -> tuple[Feature, ...]:
    """A pre-training example that the input pipeline masks.

    Args:
      max_seq_length: length of the sequences.
      word_starts: whether each record says which pieces begin a word, which whole-word masking needs.
    """
    masked = {"masked_lm_positions", "masked_lm_ids", "masked_lm_weights"}
    features = tuple(f for f in pretraining_features(max_seq_length, 1) if f.name not in masked)
    return (*features, Feature("word_starts", max_seq_length)) if word_starts else features


def classification_features(max_seq_length: int) -> tuple[Feature, ...]:
    """A classification example, as the release's run_classifier.py writes it."""
    return (
        Feature("input_ids", max_seq_length),
        Feature("input_mask", max_seq_length),
        Feature("segment_ids", max_seq_length),
        Feature("label_ids", 1),
        Feature("is_real_example", 1),
    )


def names(features: Sequence[Feature]) -> tuple[str, ...]:
    """The names of features, in their order."""
    return tuple(feature.name for feature in features)


def squad_features(max_seq_length: int, is_training: bool) -> tuple[Feature, ...]:
    """A window of a SQuAD example, as the release's run_squad.py writes it; the answer only for training."""
    window = (
        Feature("unique_ids", 1),
        Feature("input_ids", max_seq_length),
        Feature("input_mask", max_seq_length),
        Feature("segment_ids", max_seq_length),
    )
    answer = (Feature("start_positions", 1), Feature("end_positions", 1), Feature("is_impossible", 1))
    return window + answer if is_training else window


def serialize(features: Sequence[Feature], values: Mapping[str, Sequence[int] | Sequence[float]]) -> bytes:
    """A `tf.train.Example`, the same bytes in every process.

    Raises:
      ValueError: if a value is missing or has another length than its feature.
    """
    import tensorflow as tf

    example = tf.train.Example()
    for feature in features:
        value = values[feature.name]
        if len(value) != feature.length:
            raise ValueError(f"{feature.name} has {len(value)} numbers, but {feature.length} are expected")
        entry = example.features.feature[feature.name]
        (entry.float_list if feature.is_float else entry.int64_list).value.extend(value)
    return example.SerializeToString(deterministic=True)


def parse(features: Sequence[Feature], serialized: "tf.Tensor") -> "dict[str, tf.Tensor]":
    """Records [B] -> feature [B, length], or [B] for features of one number; integers become int32."""
    import tensorflow as tf

    spec = {
        f.name: tf.io.FixedLenFeature([f.length] if f.length > 1 else [], tf.float32 if f.is_float else tf.int64)
        for f in features
    }
    parsed = tf.io.parse_example(serialized, spec)
    return {name: x if x.dtype == tf.float32 else tf.cast(x, tf.int32) for name, x in parsed.items()}


def vocabulary_hash(vocab_file: str) -> str:
    """What identifies a vocabulary: SHA-256 of its pieces, whatever the line ends."""
    pieces = files.read_text(vocab_file, "--vocab_file").replace("\r\n", "\n").rstrip("\n")
    return hashlib.sha256(pieces.encode()).hexdigest()


@dataclasses.dataclass(frozen=True)
class Sidecar:
    """What is known of a shard without opening it; the JSON file beside it.

    Attributes:
      records: how many examples the shard holds.
      file_size: its bytes; a shard of another size was cut short or changed.
      max_seq_length: length of the sequences.
      max_predictions_per_seq: length of the masked-LM lists; 0 where the records are not masked yet.
      vocab_sha256: see `vocabulary_hash`.
      settings: everything else that made the shard: masking policy, seed, casing, tool version...
      features: names of what each record holds, in their order.
      counts: of tokens, predictions, random next segments...
      format_version: of this file.
    """

    records: int
    file_size: int
    max_seq_length: int
    max_predictions_per_seq: int
    vocab_sha256: str
    settings: Mapping[str, Any]
    features: tuple[str, ...] = names(pretraining_features(1, 1))
    counts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    @staticmethod
    def path_of(shard: str) -> str:
        """Where the sidecar of a shard lies."""
        return shard + SIDECAR_SUFFIX

    @property
    def is_masked(self) -> bool:
        """False for records that the input pipeline masks (`--masking=dynamic`)."""
        return "masked_lm_ids" in self.features

    def record_features(self) -> tuple[Feature, ...]:
        """What each record holds."""
        if self.is_masked:
            return pretraining_features(self.max_seq_length, self.max_predictions_per_seq)
        return unmasked_features(self.max_seq_length, word_starts="word_starts" in self.features)

    def write(self, shard: str) -> None:
        """Writes the sidecar of a finished shard."""
        files.write_json(self.path_of(shard), dataclasses.asdict(self))

    @classmethod
    def read(cls, shard: str) -> "Sidecar | None":
        """The sidecar of a shard; None where there is none, as beside the release's own shards.

        Raises:
          InputError: if it can't be read, or is of a later version.
        """
        path = cls.path_of(shard)
        if not files.exists(path):
            return None
        values = files.read_json(path, "--input_file")
        expected = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(values, dict) or values.keys() != expected or values["format_version"] != FORMAT_VERSION:
            raise InputError(
                f"--input_file: {path} is not a sidecar of format {FORMAT_VERSION}. "
                "It was written by another version of create_pretraining_data; make the data anew."
            )
        return cls(**values | {"features": tuple(values["features"])})
