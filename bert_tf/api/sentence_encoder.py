"""Text embeddings."""

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self, Unpack

import numpy as np
import tensorflow as tf

from bert_tf import features, sentence_vectors
from bert_tf.api import in_memory
from bert_tf.api.arguments import NamesArguments, PathLike
from bert_tf.api.setting_types import ExportSettings, FitSettings
from bert_tf.api.vector_trainer import VectorTrainer, checked_examples, with_scores
from bert_tf.checkpoints import pretrained
from bert_tf.checkpoints.pretrained import LoadedBert
from bert_tf.config import WORD_POOLINGS, Pooling
from bert_tf.data_report.splits import report_inputs, report_truncation
from bert_tf.features import Word
from bert_tf.finetuning import feature_sets
from bert_tf.finetuning.feature_sets import FeatureSet
from bert_tf.graphs.encoder import InferenceEncoder
from bert_tf.graphs.pretrained import states_of, vectors_of
from bert_tf.graphs.text_reader import ids_function
from bert_tf.runtime.errors import InputError, require_choice, require_path
from bert_tf.sentence_vectors import VectorConfig
from bert_tf.sequences import packing
from bert_tf.tasks.data_config import MetricName, SimilarityConfig
from bert_tf.tasks.sentences.similarity import scores_of, text_ids_of

# The number of compiled functions that an encoder keeps. A function depends on the settings of the vectors.
_MAX_GRAPHS = 16


class SentenceEncoder(NamesArguments):
    """Computes a vector for each text or pair of texts.

    Examples:
      >>> encoder = bert_tf.SentenceEncoder.from_pretrained("build/quickstart/pretrained")
      >>> vectors = encoder.encode(["The whale was white.", "She danced with him.", ("a pair", "of texts")])
      >>> vectors.shape
      (3, 128)
      >>> encoder.similarity(vectors[:1], vectors)
      array([[1.        , 0.7526934 , 0.80030566]], dtype=float32)

    Args:
      bert: the model. The first call of `encode` copies its weights.
      max_seq_length: longer sequences are truncated to this number of tokens. Default: the model's maximum.
      config: the defaults of `encode`.
      output_dir: the run directory of `fit`; None for a temporary one. See `bert_tf.api.recorded_run.RecordedRun`.

    Attributes:
      bert: the model; after `fit`, the trained model.
      max_seq_length: longer sequences are truncated to this number of tokens. It may be changed.
      config: the defaults of `encode`.
    """

    def __init__(
        self,
        bert: LoadedBert,
        max_seq_length: int | None = None,
        config: VectorConfig | None = None,
        output_dir: PathLike | None = None,
    ) -> None:
        self.bert: LoadedBert = bert
        self._output_dir, self._trainer = output_dir, None
        self.max_seq_length = bert.config.max_position_embeddings if max_seq_length is None else max_seq_length
        self.config: VectorConfig = config or VectorConfig()
        self._functions = functools.lru_cache(maxsize=_MAX_GRAPHS)(self._function)

    def __repr__(self) -> str:
        return f"SentenceEncoder({self.bert.source.path!r}, max_seq_length={self.max_seq_length})"

    @property
    def max_seq_length(self) -> int:
        """The largest number of tokens of a sequence; see the class."""
        return self._max_seq_length

    @max_seq_length.setter
    def max_seq_length(self, value: int) -> None:
        packing.check_max_seq_length(value)
        self.bert.config.check_sequence_length(value)
        self._max_seq_length = value

    @classmethod
    def from_pretrained(
        cls,
        path: str | os.PathLike[str],
        *,
        max_seq_length: int | None = None,
        do_lower_case: bool | None = None,
        dtype: str | None = None,
        output_dir: PathLike | None = None,
    ) -> Self:
        """Returns an encoder with a model's weights.

        Args:
          path: see `bert_tf.load_model`. A sentence-transformers directory also determines the defaults of `encode` and
            of `max_seq_length`.
          max_seq_length: longer sequences are truncated to this number of tokens. Default: the model's maximum.
          do_lower_case: see `bert_tf.load_model`.
          dtype: see `bert_tf.load_model`.
          output_dir: the run directory. `fit` resumes an interrupted run in it.

        Raises:
          InputError: if a file is missing, or the files do not match each other.
        """
        source = sentence_vectors.find(require_path("from_pretrained()", path), "from_pretrained()")
        bert = pretrained.load_model(source.path, do_lower_case, dtype)
        pretrained.required_tokenizer(bert.tokenizer, bert.source.path, "from_pretrained()")
        longest = min(source.max_seq_length or bert.config.max_position_embeddings, bert.config.max_position_embeddings)
        return cls(bert, longest if max_seq_length is None else max_seq_length, source.config, output_dir)

    def fit(
        self,
        x: Any,
        y: Any = None,
        *,
        validation_split: float = 0.0,
        validation_data: Any = None,
        pooling: Pooling | None = None,
        similarity_scale: float = 20.0,
        symmetric_loss: bool = False,
        max_score: float = 1.0,
        verbose: int = 1,
        callbacks: Any = None,
        selection_metric: MetricName | None = None,
        **settings: Unpack[FitSettings],
    ) -> dict[str, float]:
        """Trains the encoder, so that similar texts get similar vectors.

        The same as `run_classifier.py --task_name=similarity`. For runs and resuming, see `Classifier.fit`.

        Args:
          x: pairs of similar texts (anchor, positive), triplets (anchor, positive, negative), or rows of a table with
            these columns, or with `sentence1` and `sentence2`. The other texts of a batch are also negatives.
          y: the score of each pair. Default: the column `score` or `label` of the table, if there is one.
          validation_split: see `Classifier.fit`.
          validation_data: examples as for `x`, or a tuple (examples, scores). They may have another form than `x`.
          pooling: becomes the default of `encode`. Default: as before.
          similarity_scale: without scores, cosine similarities are multiplied by this factor before the softmax.
          symmetric_loss: if True, the loss also includes finding the anchor of each positive.
          max_score: scores are divided by it. The results must be from -1 to 1.
          verbose: see `Classifier.fit`.
          callbacks: see `Classifier.fit`.
          selection_metric: the score that selects the best weights. Default: "spearman" with scores, else
            "recall_at_1".
          settings: see `Classifier.fit`.

        Returns:
          The scores on the validation data, named as in eval_results.txt; empty without validation data.

        Raises:
          InputError: if the data can't be used, or the directory has a run with other data or settings.
          KeyboardInterrupt: after Ctrl-C, once the state has been saved.
          TypeError: if there is no such argument.
        """
        config = self.config if pooling is None else self.config.replace(pooling=pooling)
        options = SimilarityConfig(None, similarity_scale, symmetric_loss, max_score)
        trainer = self._trainer = self._trainer or VectorTrainer.of(self.bert, self._output_dir)
        trainer.prepare(self.max_seq_length, config, options)
        if validation_data is not None:
            pair = validation_data if isinstance(validation_data, tuple) else (validation_data, None)
            validation_data = with_scores(*pair, "validation_data")
        results = trainer.fit(
            *with_scores(x, y, "x"),
            validation_split=validation_split,
            validation_data=validation_data,
            verbose=verbose,
            callbacks=callbacks,
            selection_metric=selection_metric,
            **settings,
        )
        self.bert = pretrained.load_model(trainer.model_directory, dtype=self.bert.encoder.compute_dtype)
        self.config = config
        vars(self).pop("_encoder", None)
        self._functions.cache_clear()
        return results

    def evaluate(self, x: Any, y: Any = None, *, batch_size: int = 16) -> dict[str, float]:
        """Returns "spearman" and "pearson", the correlations of cosine similarities and scores, or "recall_at_1".

        Without scores, "recall_at_1" is the fraction of anchors whose most similar text, among all positives and
        negatives, is a positive of the anchor.

        Args:
          x: the examples; see `fit`.
          y: the scores of pairs; see `fit`.
          batch_size: see `encode`.

        Raises:
          InputError: if an example can't be used.
        """
        examples = checked_examples(*with_scores(x, y, "x"))
        text_ids, texts = text_ids_of(examples)
        scores = [example.label for example in examples]
        vectors = self.encode(texts, batch_size=batch_size)[text_ids]
        return scores_of(vectors, text_ids, None if scores[0] is None else np.array(scores))

    def history(self) -> list[dict[str, Any]]:
        """Returns the lines of metrics.jsonl: the metrics of the last training run, with step and time."""
        return self._trained().history()

    def save(self, directory: PathLike) -> None:
        """Writes the trained model to a new directory, for `from_pretrained` and all programs.

        `bert_tf.convert_checkpoint` with the format "hf" converts it to a directory of sentence-transformers.

        Args:
          directory: the new directory.

        Raises:
          InputError: if nothing has been trained yet, or the directory is not new.
        """
        self._trained().save(directory)

    def export(self, directory: PathLike, **options: Unpack[ExportSettings]) -> None:
        """Exports the trained model as a SavedModel that takes raw texts. See `bert_tf.export.export_run`.

        Args:
          directory: a new directory.
          options: fields of `bert_tf.serving.export_config.ExportConfig`.

        Raises:
          InputError: if nothing has been trained yet, the directory is not new, or an option is invalid.
        """
        self._trained().export(directory, **options)

    def _trained(self) -> VectorTrainer:
        if self._trainer is None:
            raise InputError("SentenceEncoder: there is no trained model yet. Call fit() first.")
        return self._trainer

    def encode(
        self,
        x: Any,
        *,
        pooling: str | None = None,
        normalize: bool | None = None,
        layers: int | Sequence[int] | None = None,
        prompt: str | None = None,
        prompt_name: str | None = None,
        batch_size: int = 16,
    ) -> np.ndarray:
        """Returns the vectors of texts.

        Args:
          x: one text, or texts and pairs of texts: a list, an array, a pandas object, or a `tf.data.Dataset`.
          pooling: "mean" or "max" over the hidden states of all tokens, including [CLS] and [SEP]; "cls": the hidden
            state of [CLS]; "pooled": the pooler's output, which was trained with next sentence prediction. Default:
            as recorded in the model's directory, or else "mean".
          normalize: if True, scale each vector to length 1, so that dot products are cosine similarities. Default: as
            recorded in the model's directory, or else False.
          layers: a layer, or the layers whose hidden states are concatenated; 0 is the first layer, -1 the last.
            Default: the last.
          prompt: a text to put before each text, or before the first text of a pair. Default: the model's, if any.
          prompt_name: the name of a prompt in the model's directory, such as "query".
          batch_size: number of texts in a batch of the largest length. Batches of shorter texts have more.

        Returns:
          float32 [num_texts, hidden_size * number of layers], in the order of the texts; without the first axis if x is
          one text.

        Raises:
          InputError: if a text can't be used, or the model can't compute such vectors.
        """
        config = self.config.with_given(pooling=pooling, normalize=normalize, layers=_layers(layers))
        prompts = {None: config.prompt, **dict(config.prompts)}
        if prompt_name not in prompts:
            raise InputError(f"there is no prompt {prompt_name!r}. Use one of {list(prompts)[1:]}.", "prompt_name")
        config = config.with_prompt(prompts[prompt_name] if prompt is None else prompt, self.bert.tokenizer)
        bert, longest = self.bert, self.max_seq_length
        config.check_model(bert.config.num_hidden_layers, bert.encoder.pooler is not None, bert.source.path)
        values = [x] if isinstance(x, str) else in_memory.as_list(x, "x")
        texts = [in_memory.texts(value, f"text {number}") for number, value in enumerate(values)]
        # Without texts, an empty text is encoded to get the size of the vectors.
        packed = [bert.tokenizer.pack(config.prompt + a, b, longest) for a, b in texts or [("", None)]]
        report_truncation(sum(is_truncated for *_, is_truncated in packed), len(packed), "x", longest)
        lines = (text_a for text_a, _ in texts)
        results = None
        for numbers, vectors in self._outputs(vectors_of, config, packed, batch_size, lines):
            results = np.zeros((len(packed), vectors.shape[1]), np.float32) if results is None else results
            results[numbers] = vectors
        return results[0] if isinstance(x, str) else results[: len(texts)]

    def encode_words(
        self, x: Any, *, pooling: str = "mean", layers: int | Sequence[int] = (-1,), batch_size: int = 16
    ) -> list[tuple[list[Word], np.ndarray]]:
        """Returns the vectors of the words of texts, without a prompt.

            for words, vectors in encoder.encode_words(["The whale was white.", "She danced."]):
                print([(word.text, word.start, word.end) for word in words], vectors.shape)

        Words without tokens (control characters) and words that lose tokens by truncation have no vector. A message
        reports the number of truncated words.

        Args:
          x: texts, which are split at white space, or lists of words.
          pooling: "mean" of the hidden states of a word's tokens, or "first": the hidden state of its first token.
          layers: see `encode`.
          batch_size: see `encode`.

        Returns:
          For each text, its words and their vectors, float32 [num_words, hidden_size * number of layers].

        Raises:
          InputError: if a text can't be used, or the model has no such layer.
        """
        require_choice("pooling", pooling, WORD_POOLINGS)
        config = VectorConfig().with_given(layers=_layers(layers))
        config.check_model(self.bert.config.num_hidden_layers, True, self.bert.source.path)
        values = in_memory.as_list(x, "x", rank=1)
        for number, value in enumerate(values):
            for item in value if isinstance(value, list | tuple) else [value]:
                in_memory.text(item, f"text {number}")
        packed = [features.pack_words(self.bert.tokenizer, value, None, self.max_seq_length) for value in values]
        features.report_truncated_words(sum(count for *_, count in packed), "x", self.max_seq_length)
        lines = (value if isinstance(value, str) else " ".join(value) for value in values)
        results: list[Any] = [None] * len(packed)
        for numbers, states in self._outputs(states_of, config, packed, batch_size, lines):
            for number, row in zip(numbers, states, strict=True):
                words = packed[number][2]
                results[number] = words, features.word_vectors(row, words, pooling)
        return results

    def _outputs(
        self,
        function: Callable[..., tf.Tensor],
        config: VectorConfig,
        packed: Sequence[tuple],
        batch_size: int,
        lines: Iterator[str],
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields the indices of each batch's sequences, and the outputs [B, ...] of `function` for them.

        First reports unusual properties of the texts `lines` and of their tokens.
        """
        sequences = FeatureSet.from_sequences([row[:2] for row in packed])
        self.bert.config.check_segments(bool((sequences.first_lengths < sequences.lengths).any()))
        report_inputs(lines, self.bert.tokenizer, "x", sequences.input_ids, once=True)
        buckets = feature_sets.bucket_lengths(self.max_seq_length)
        compute = self._functions(function, config.replace(prompt="", prompts=()))  # the graph contains no prompt
        for numbers, batch in feature_sets.batches_by_length(sequences, batch_size, buckets):
            yield numbers, compute(**batch).numpy()[: len(numbers)]

    def similarity(self, a: Any, b: Any) -> np.ndarray:
        """Returns the cosine similarity of each vector in a [n, H] and each vector in b [m, H], as [n, m].

        Args:
          a: vectors, or texts, which are encoded.
          b: see `a`.

        Raises:
          InputError: if a text can't be used, or a number is not finite.
        """
        unit_a, unit_b = (sentence_vectors.unit_vectors(self._vectors(x), name) for x, name in ((a, "a"), (b, "b")))
        return unit_a @ unit_b.T

    def search(self, queries: Any, corpus: Any, k: int = 10) -> tuple[np.ndarray, np.ndarray]:
        """Finds the k texts of a corpus with the largest cosine similarity to each query.

            vectors = encoder.encode(["The whale was white.", "She danced with him."])
            indices, scores = encoder.search(["a dance"], vectors, k=1)

        Args:
          queries: texts, or their vectors [q, H]; also one text, or one vector [H].
          corpus: texts, or their vectors [n, H], in memory or an `np.memmap`. Encode a corpus once if you search it
            several times.
          k: the number of texts to find, n at most.

        Returns:
          See `bert_tf.sentence_vectors.search`.

        Raises:
          InputError: if k is below 1, a text can't be used, or the vectors have different sizes or numbers that are not
            finite.
        """
        return sentence_vectors.search(*(np.atleast_2d(self._vectors(x)) for x in (queries, corpus)), k)

    def _vectors(self, x: Any) -> np.ndarray:
        """Returns vectors that are given as an array, a list or a table, or else the vectors of texts."""
        array = np.asarray(x[:1] if isinstance(x, list | tuple) else x)  # an array of many texts would be large
        has_vectors = array.dtype.kind in "fiu" and (array.size or array.ndim > 1)
        return np.asarray(x) if has_vectors else self.encode(x)

    @functools.cached_property
    def _encoder(self) -> InferenceEncoder:
        return InferenceEncoder(self.bert.encoder, self.bert.encoder.compute_dtype)

    def _function(self, function: Callable[..., tf.Tensor], config: VectorConfig) -> Callable[..., tf.Tensor]:
        encoder = self._encoder
        return ids_function(lambda batch: function(encoder, batch, config))


def _layers(layers: int | Sequence[int] | None) -> tuple[int, ...] | None:
    return None if layers is None else tuple(np.atleast_1d(layers).tolist())
