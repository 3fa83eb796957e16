"""Feature-based tagging: a frozen encoder computes the features of each word once. A BiLSTM is trained on them."""

import dataclasses
import hashlib
import os
import tempfile
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from bert_tf.config import BertConfig, BiLstmConfig
from bert_tf.features import FrozenEncoder
from bert_tf.finetuning import feature_sets
from bert_tf.finetuning.models import NO_TAG
from bert_tf.runtime import dry_run, files, reporting
from bert_tf.runtime.files import InputError
from bert_tf.runtime.messages import say
from bert_tf.sequences.text_packer import TextPacker
from bert_tf.tasks.setup import Setup
from bert_tf.tasks.tagging.feature_tagger import FeatureTagger
from bert_tf.tasks.tagging.schemes import Sentence
from bert_tf.tasks.tagging.tagging_task import FILE_NAMES, TaggingFeatures, TaggingTask

# The number of windows per batch.
_BATCH_SIZE = 32


@dataclasses.dataclass(frozen=True)
class FeatureBased:
    """The paper's feature-based approach (section 5.3).

    Attributes:
      encoder: the frozen encoder, and the layers to use.
      combination: how the layers are combined; see `bert_tf.tasks.data_config.FeatureConfig`.
      units: the number of units in each direction of the BiLSTM.
      features_dir: a directory that stores the features for other runs with the same model, layers and text; "" for a
        temporary file.

    Raises:
      InputError: if the directory is remote.
    """

    encoder: FrozenEncoder
    combination: str = "concat"
    units: int = BiLstmConfig().units
    features_dir: str = ""

    def __post_init__(self) -> None:
        if files.is_remote(self.features_dir):
            raise InputError(f"--features_dir is {self.features_dir!r}. Use a local directory.")


class FeatureTaggingTask(TaggingTask):
    """Feature-based tagging of sentences.

    The features of a word are the activations of the word's first token, in the window in which fine-tuning would
    predict the tag. The BiLSTM reads the words of one sentence as a sequence.

    Args:
      feature_based: the encoder and the settings of the tagger.
      arguments: see `TaggingTask`.
    """

    def __init__(self, feature_based: FeatureBased, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.feature_based = feature_based

    @classmethod
    def build(cls, setup: Setup) -> Self:
        """See `Task.build`."""
        return cls(setup.feature_based, setup.config, setup.sources(FILE_NAMES), setup.labels(), setup.recorded)

    def resume_settings(self) -> dict[str, Any]:
        """Returns the settings of `TaggingTask`, and the path of the encoder."""
        return super().resume_settings() | {"encoder": files.real_path(self.feature_based.encoder.init_checkpoint)}

    def input_settings(self) -> dict[str, Any]:
        """Returns the settings of `TaggingTask`, the encoder, the layers and the tagger."""
        return super().input_settings() | {
            "encoder_sha256": self.feature_based.encoder.fingerprint,
            "feature_layers": list(self.feature_based.encoder.layers),
            "feature_combination": self.feature_based.combination,
            "bilstm_units": self.feature_based.units,
        }

    def featurize(self, examples: Sequence[Sentence], packer: TextPacker, num_workers: int = 1) -> TaggingFeatures:
        """Returns features with one row per sentence and one token per word.

        `num_workers` is ignored. All sentences are tokenized in this process, because worker processes can't be started
        after TensorFlow has computed the features of another split.
        """
        windows = super().featurize(examples, packer)
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
            word_positions=np.arange(lengths.sum()) - np.repeat(starts, lengths),
            sentence_lengths=windows.sentence_lengths,
        )

    def _activations(self, windows: TaggingFeatures) -> np.ndarray:
        """Returns the activations of the encoder for each word, float32 [words, F, H].

        The activations are stored in a file, because they may need more memory than the model. For the training set of
        CoNLL-2003 and four layers of BERT_BASE, they take 2.5 GB. A temporary file is deleted together with the array.
        """
        encoder, directory = self.feature_based.encoder, self.feature_based.features_dir
        shape = (len(windows.word_windows), len(encoder.layers), encoder.config.hidden_size)
        if dry_run.is_on():  # training is checked with zeros
            encoder.encoder  # noqa: B018 (loads it)
            return np.broadcast_to(np.float32(0), shape)
        if not directory:
            with tempfile.TemporaryFile(prefix="bert_tf-activations-") as file:
                activations = np.memmap(file, np.float32, mode="w+", shape=shape)
            self._compute(windows, activations)
            return activations
        digest = hashlib.sha256(repr((encoder.fingerprint, encoder.layers)).encode())
        for array in (windows.input_ids, windows.lengths, windows.word_windows, windows.word_positions):
            digest.update(np.ascontiguousarray(array))
        path = os.path.join(directory, f"activations-{digest.hexdigest()[:24]}.npy")
        if files.exists(path):
            say(f"Reading features from {path}.")
        else:
            with files.replacing(path, "wb") as writer:
                self._compute(windows, np.lib.format.open_memmap(writer.name, "w+", np.float32, shape))
        return np.load(path, mmap_mode="r")

    def _compute(self, windows: TaggingFeatures, activations: np.ndarray) -> None:
        """Fills `activations`, float32 [words, F, H]."""
        compute = self.feature_based.encoder.compiled()
        buckets = feature_sets.bucket_lengths(windows.max_length)
        with reporting.progress_bar(len(windows), "compute features", unit="window") as bar:
            for numbers, batch in feature_sets.batches_by_length(windows, _BATCH_SIZE, buckets):
                states = compute(batch)
                # Words are sorted by their windows.
                firsts, ends = (np.searchsorted(windows.word_windows, numbers, side) for side in ("left", "right"))
                for row, (first, end) in enumerate(zip(firsts, ends, strict=True)):
                    activations[first:end] = states[row, windows.word_positions[first:end]]
                bar.update(len(numbers))

    def build_model(self, config: BertConfig, **options: Any) -> FeatureTagger:
        """Returns the tagger without the encoder. The options are ignored, because they apply to the encoder."""
        layers, bilstm = len(self.feature_based.encoder.layers), BiLstmConfig(units=self.feature_based.units)
        sizes = layers, len(self.tags), bilstm
        return FeatureTagger(config, *sizes, self.feature_based.combination, self.config.loss.record)
