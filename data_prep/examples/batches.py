"""Planned examples to the arrays of their records: tokens fetched, packed and masked, whole batches at once.

Axis letters: B examples, T tokens.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from bert_tf.runtime.files import InputError
from bert_tf.sequences.example_format import Feature, pretraining_features, unmasked_features
from bert_tf.sequences.masking import MaskingPolicy, MaskingVocabulary, mask_batch
from bert_tf.sequences.packing import pack_batch
from data_prep.corpus.token_store import CONTINUES_WORD, TokenStore
from data_prep.examples.records import RecordEncoder


@dataclasses.dataclass(frozen=True)
class ExampleOptions:
    """What a record holds.

    Attributes:
      max_seq_length: length of the sequences.
      max_predictions_per_seq: length of the masked-LM lists.
      is_masked: whether sequences are masked here; otherwise the input pipeline does it, or (objective "ltr") nobody.
      policy: which pieces are masked, and what replaces them.
      is_segmented: whether the tokens of the store say which of them continue a word (see `word_segmentation`).

    Raises:
      InputError: if there is no room for a prediction.
    """

    max_seq_length: int
    max_predictions_per_seq: int
    is_masked: bool
    policy: MaskingPolicy
    is_segmented: bool = False

    def __post_init__(self) -> None:
        if self.max_predictions_per_seq < 1:
            raise InputError(
                f"--max_predictions_per_seq is {self.max_predictions_per_seq}, but at least 1 is expected."
            )

    @property
    def features(self) -> tuple[Feature, ...]:
        """What a record holds."""
        if self.is_masked:
            return pretraining_features(self.max_seq_length, self.max_predictions_per_seq)
        return unmasked_features(self.max_seq_length, word_starts=self.policy.whole_word)


class ExampleMaker:
    """Makes the records of planned examples.

    Args:
      options: what they hold.
      vocab: piece -> id.
      store: where their tokens lie; None if they are given.
    """

    def __init__(self, options: ExampleOptions, vocab: Mapping[str, int], store: TokenStore | None = None) -> None:
        self._options = options
        self._store = store
        self._vocabulary = MaskingVocabulary.of(vocab, options.policy.ordinary_replacements)
        self._encoder = RecordEncoder(
            options.features, max(len(self._vocabulary.continues_word), options.max_seq_length)
        )

    def make(self, keys: np.ndarray, examples: np.ndarray) -> dict[str, np.ndarray]:
        """By feature, arrays [B, length].

        Args:
          keys: [B] that masks are drawn from.
          examples: [B] of type `instances.EXAMPLE`.
        """
        starts = np.stack([examples["start_a"], examples["start_b"]], axis=1).ravel()
        lengths = np.stack([examples["length_a"], examples["length_b"]], axis=1).ravel().astype(np.int64)
        return self.make_of(keys, examples, self._store.read_tokens(starts, lengths))

    def make_of(self, keys: np.ndarray, examples: np.ndarray, tokens: np.ndarray) -> dict[str, np.ndarray]:
        """`make` of tokens that are at hand: A and B of the first example, then of the second, and so on."""
        options, vocabulary = self._options, self._vocabulary
        continues_word = None
        if options.is_segmented:
            continues_word = tokens >= CONTINUES_WORD
            tokens = tokens & ~CONTINUES_WORD
        packed = pack_batch(
            tokens,
            examples["length_a"],
            examples["length_b"],
            options.max_seq_length,
            vocabulary.cls_id,
            vocabulary.sep_id,
        )
        values = {
            "input_ids": packed.input_ids,
            "input_mask": packed.input_mask,
            "segment_ids": packed.segment_ids,
            "next_sentence_labels": examples["is_random_next"][:, None],
        }
        word_starts = None
        if options.policy.whole_word:
            if continues_word is None:
                continues_word = vocabulary.continues_word[tokens]
            word_starts = np.zeros_like(packed.is_text)
            word_starts[packed.is_text] = ~continues_word
        if options.is_masked:
            masked = mask_batch(
                packed.input_ids,
                packed.is_text,
                keys,
                word_starts,
                options.policy,
                vocabulary,
                options.max_predictions_per_seq,
            )
            return values | masked.features()
        return values if word_starts is None else values | {"word_starts": word_starts}

    def encode(self, values: Mapping[str, np.ndarray]) -> list[bytes]:
        """The TFRecords of a batch; see `RecordEncoder.encode`."""
        return self._encoder.encode(values)


def count_examples(values: Mapping[str, np.ndarray]) -> dict[str, int]:
    """What a batch of records adds to the counts of its shard."""
    counts = {
        "records": len(values["input_ids"]),
        "tokens": int(values["input_mask"].sum()),
        "random_next": int(values["next_sentence_labels"].sum()),
    }
    if "masked_lm_weights" in values:
        counts["predictions"] = int(values["masked_lm_weights"].sum())
    return counts
