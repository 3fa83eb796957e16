"""Named entities by features: the encoder is read once for every word, and a BiLSTM is trained on what it says."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bert_tf.config import BertConfig
from bert_tf.features import FrozenEncoder
from bert_tf.finetuning import feature_sets
from bert_tf.finetuning.models import NO_TAG
from bert_tf.model.bilstm import BiLstmConfig
from bert_tf.runtime import reporting
from bert_tf.tasks.tagging.conll import Sentence
from bert_tf.tasks.tagging.feature_tagger import FeatureTagger
from bert_tf.tasks.tagging.task import TaggingFeatures, TaggingTask
from bert_tf.tokenization import FullTokenizer

# Windows that are computed together.
_BATCH_SIZE = 32


@dataclasses.dataclass(frozen=True)
class FeatureBased:
    """The paper's feature-based approach (section 5.3).

    Attributes:
      encoder: what is read.
      combination: how its layers are put together; see `feature_tagger.COMBINATIONS`.
      units: of each direction of the BiLSTM.
    """

    encoder: FrozenEncoder
    combination: str = "concat"
    units: int = BiLstmConfig.units


class FeatureTaggingTask(TaggingTask):
    """Entities in sentences, by features.

    A word's features are the activations of its first piece, in the window that has the word's tag when the model is
    fine-tuned. The BiLSTM goes over the words of a sentence.

    Args:
      paths: see `TaggingTask`, as for the next two and the last.
      how: what is read, and how the tagger is built.
      types: see `TaggingTask`.
      use_documents: see `TaggingTask`.
      on_bad_row: see `TaggingTask`.
    """

    def __init__(
        self,
        paths: Mapping[str, str],
        how: FeatureBased,
        types: Sequence[str] | None = None,
        use_documents: bool = True,
        on_bad_row: str = "error",
    ) -> None:
        super().__init__(paths, types, use_documents, on_bad_row)
        self.how = how

    def resume_settings(self) -> dict[str, Any]:
        """What `TaggingTask` has, and what is read."""
        return super().resume_settings() | {
            "encoder": self.how.encoder.init_checkpoint,
            "feature_layers": list(self.how.encoder.layers),
            "feature_combination": self.how.combination,
            "bilstm_units": self.how.units,
        }

    def featurize(
        self, examples: Sequence[Sentence], tokenizer: FullTokenizer, max_seq_length: int, num_workers: int = 1
    ) -> TaggingFeatures:
        """A row for each sentence, a token for each word.

        Tokenised in this process, whatever `num_workers` says: from the second split on, TensorFlow has run.
        """
        windows = super().featurize(examples, tokenizer, max_seq_length)
        lengths = windows.sentence_lengths.astype(np.int32)
        starts = np.cumsum(lengths) - lengths
        return TaggingFeatures(
            input_ids=windows.word_values(windows.input_ids),
            lengths=lengths,
            first_lengths=lengths,
            per_token={
                "tag_ids": (windows.word_tag_ids(), NO_TAG),
                "activations": (self._activations(windows), 0),
            },
            word_windows=np.repeat(np.arange(len(lengths)), lengths),
            word_places=np.arange(lengths.sum()) - np.repeat(starts, lengths),
            sentence_lengths=windows.sentence_lengths,
        )

    def _activations(self, windows: TaggingFeatures) -> np.ndarray:
        """What the encoder says of each word: [words, F, H]."""
        encoder = self.how.encoder
        words = len(windows.word_windows)
        found = np.zeros((words, len(encoder.layers), encoder.config.hidden_size), np.float32)
        buckets = feature_sets.bucket_lengths(windows.max_length, compiled=False)
        with reporting.progress_bar(len(windows), "read the encoder", unit="window") as bar:
            for numbers, batch in feature_sets.batches_by_length(windows, _BATCH_SIZE, buckets):
                states = encoder.activations(batch)
                # Words are in the order of their windows.
                firsts, ends = (np.searchsorted(windows.word_windows, numbers, side) for side in ("left", "right"))
                for row, (first, end) in enumerate(zip(firsts, ends, strict=True)):
                    found[first:end] = states[row, windows.word_places[first:end]]
                bar.update(len(numbers))
        return found

    def build_model(self, config: BertConfig, **options) -> FeatureTagger:
        """The tagger alone; options are of no account, for no encoder is trained."""
        layers, bilstm = len(self.how.encoder.layers), BiLstmConfig(units=self.how.units)
        return FeatureTagger(config, layers, len(self.tags), bilstm, self.how.combination)
