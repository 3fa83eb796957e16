"""Computes the activations of a frozen encoder for each token, as features for other models (paper, section 5.3).

The input and output formats are the same as in the original extract_features.py.
"""

import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf import checkpoints
from bert_tf.checkpoints import pretrained
from bert_tf.config import BertConfig
from bert_tf.data_report.splits import report_truncation
from bert_tf.distribution import hardware, strategies
from bert_tf.distribution.devices import DistributionConfig
from bert_tf.encoder import BertEncoder
from bert_tf.runtime import files, reporting
from bert_tf.runtime.files import InputError
from bert_tf.runtime.messages import say
from bert_tf.runtime.storage import first_bytes
from bert_tf.sentence_vectors import VectorConfig, check_layers
from bert_tf.sequences import packing
from bert_tf.text import Tokenizer

# In lists of layers, the name of the embedding output, which is the input of the first encoder block.
EMBEDDINGS = "embeddings"


# A text, or a pair of texts.
TextLine = tuple[str, str | None]


class Word(NamedTuple):
    """A word in a sequence.

    Attributes:
      text: the word.
      index: the number of the word in its text, from 0.
      start: the position of the first character in the text or, for a pair of texts, in "a ||| b".
      end: the position after the last character.
      tokens: the positions of the tokens in the sequence.
    """

    text: str
    index: int
    start: int
    end: int
    tokens: slice


def pack_words(
    tokenizer: Tokenizer, text_a: str | Sequence[str], text_b: str | None, max_seq_length: int
) -> tuple[list[int], list[int], list[Word], int]:
    """Makes a sequence like `Tokenizer.pack`, and finds the tokens of each word.

    Args:
      tokenizer: the tokenizer.
      text_a: the first text, or its words; see `Tokenizer.encode_words`.
      text_b: the second text, or None.
      max_seq_length: longest sequence in tokens; longer ones are truncated.

    Returns:
      The ids, the segment ids, the words with all their tokens in the sequence, and the number of words that lost
      tokens by truncation. Words without tokens are omitted.
    """
    segments = [tokenizer.encode_words(text) for text in (text_a, text_b or "")]
    ids = [[number for *_, tokens in segment for number in tokens] for segment in segments]
    lengths = packing.fitting_lengths(*map(len, ids), max_seq_length)
    words, position, shift = [], 1, 0  # the first position is [CLS]
    for segment, length in zip(segments, lengths, strict=True):
        limit = position + length
        for index, (text, begin, tokens) in enumerate(segment):
            end = position + len(tokens)
            if tokens and end <= limit:
                words.append(Word(text, index, shift + begin, shift + begin + len(text), slice(position, end)))
            position = end
        position, shift = limit + 1, len(text_a) + len(" ||| ")
    num_words = sum(bool(tokens) for segment in segments for *_, tokens in segment)
    packed = packing.pack(ids, lengths, tokenizer.ends)
    return packed.ids, packed.segment_ids, words, num_words - len(words)


def word_vectors(states: np.ndarray, words: Sequence[Word], pooling: str) -> np.ndarray:
    """Returns the vectors of words.

    Args:
      states: [T, ...], the states of the tokens of a sequence.
      words: W words in the sequence.
      pooling: one of `config.WORD_POOLINGS`.

    Returns:
      [W, ...], float32.
    """
    token_states = [states[word.tokens] for word in words]
    vectors = [rows[0] if pooling == "first" else rows.mean(axis=0) for rows in token_states]
    return np.array(vectors, np.float32).reshape(len(words), *states.shape[1:])


def report_truncated_words(count: int, source: str, max_seq_length: int) -> None:
    """Prints the number of words that were left out because of truncation, unless it is 0."""
    if count:
        words = f"{count} words are after the first {max_seq_length} tokens"
        say(f"{source}: {words} and were left out (--max_seq_length).")


def read_examples(input_file: str, prompt: str = "", flag_name: str = "--input_file") -> list[TextLine]:
    """Reads a file with one text or one pair of texts ("a ||| b") per line.

    Args:
      input_file: the file.
      prompt: a text to put before each text, or before the first text of a pair.
      flag_name: the flag with the path, for messages.

    Raises:
      InputError: if the file is missing, empty or not UTF-8, or is JSON or a table.
    """
    text = files.read_text(input_file, flag_name)
    if kind := first_bytes.format_of_lines(text):
        raise InputError(
            f"{flag_name}: {input_file} is {kind}, but each line must be a text. Write one text per line. In Python, "
            "bert_tf.SentenceEncoder encodes the columns of tables."
        )
    lines = map(str.strip, files.lines_of(text))
    pairs = ((line, re.match(r"^(.*) \|\|\| (.*)$", line)) for line in lines)
    texts = (pair.groups() if pair else (line, None) for line, pair in pairs)
    return [(prompt + text_a, text_b) for text_a, text_b in texts]


def layer_numbers(layers: str, num_hidden_layers: int, flag_name: str = "--layers") -> list[int]:
    """Parses a list of layers such as "-1,-2". The first layer is 0, and the last one is -1.

    Args:
      layers: the text, with commas between the numbers.
      num_hidden_layers: the number of layers of the model.
      flag_name: the flag with the list, for messages.

    Raises:
      InputError: if an element of the list is not a number, or if the model has no such layer.
    """
    try:
        numbers = [int(layer) for layer in layers.split(",")]
    except ValueError:
        raise InputError(f"{flag_name} is {layers!r}. Use integers separated by commas.") from None
    check_layers(numbers, num_hidden_layers, flag_name)
    return numbers


class FrozenEncoder:
    """A pre-trained encoder that is not trained further. The encoder is built on first use.

    Args:
      config: the config of the encoder.
      init_checkpoint: the checkpoint with the weights.
      layers: the layers to use, separated by commas: numbers as in `layer_numbers`, or "embeddings" (paper, Table 7).
      flag_name: the flag with the layers, for messages.
      strategy: the strategy; None for one device.
      encoder_options: see `BertEncoder`.

    Raises:
      InputError: if the model has no such layer, or no checkpoint is given.
    """

    def __init__(
        self,
        config: BertConfig,
        init_checkpoint: str | None,
        layers: str,
        flag_name: str,
        strategy: tf.distribute.Strategy | None = None,
        **encoder_options: Any,
    ) -> None:
        if not init_checkpoint:
            raise InputError(f"{flag_name} requires --init_checkpoint, the model that computes the features. Pass it.")
        self.config = config
        self.init_checkpoint = init_checkpoint
        self.layers: list[int | str] = [
            name if name == EMBEDDINGS else layer_numbers(name, config.num_hidden_layers, flag_name)[0]
            for name in layers.split(",")
        ]
        self._strategy, self._encoder_options = strategy, encoder_options

    @functools.cached_property
    def fingerprint(self) -> str:
        """A digest of the config and the weights of the encoder."""
        source = checkpoints.open_checkpoint(self.init_checkpoint)
        digest = hashlib.sha256(self.config.to_json_string().encode())
        for name in sorted(name for name in source.shapes if name.startswith("bert/")):
            digest.update(name.encode() + np.ascontiguousarray(source.read(name)).tobytes())
        return digest.hexdigest()

    @functools.cached_property
    def strategy(self) -> tf.distribute.Strategy:
        """The strategy."""
        return self._strategy or strategies.build_strategy(DistributionConfig())

    @functools.cached_property
    def encoder(self) -> BertEncoder:
        """The encoder."""
        with self.strategy.scope():
            source = checkpoints.open_checkpoint(self.init_checkpoint)
            encoder, summary = pretrained.restored_encoder(self.config, source, **self._encoder_options)
        say(str(summary))
        return encoder

    def compiled(self, vectors: VectorConfig | None = None) -> Callable[[Mapping[str, np.ndarray]], np.ndarray]:
        """Returns a function that computes the hidden states of the F layers, or a vector of each text.

        The function takes a dict with input_ids, input_mask and segment_ids [B, T]. It returns float32 [B, T, F, H] or,
        with `vectors`, [B, F * H].
        """
        encoder = self.encoder

        def compute(batch: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            output = encoder(batch["input_ids"], batch["input_mask"], batch["segment_ids"])
            all_layers = output.all_encoder_layers
            layers = [output.embedding_output if name == EMBEDDINGS else all_layers[name] for name in self.layers]
            if vectors is None:
                return {"values": tf.stack(layers, axis=2)}
            states = output.pooled_output if vectors.pooling == "pooled" else tf.concat(layers, axis=-1)
            return {"values": vectors.vectors(states, batch["input_mask"])}

        run = strategies.replicated(compute, self.strategy)
        return lambda batch: run(batch)["values"]


def extract(
    encoder: FrozenEncoder,
    tokenizer: Tokenizer,
    examples: Sequence[TextLine],
    *,
    max_seq_length: int,
    batch_size: int,
    vectors: VectorConfig | None = None,
    word_pooling: str | None = None,
) -> Iterator[dict[str, Any]]:
    """Computes the activations of all examples, or one vector per example or per word.

    Args:
      encoder: the encoder and its layers.
      tokenizer: the tokenizer.
      examples: the texts.
      max_seq_length: longest sequence in tokens; longer ones are truncated.
      batch_size: number of examples per batch.
      vectors: how to compute one vector per example; None for the activations of each token.
      word_pooling: how to compute the vectors of words, one of `config.WORD_POOLINGS`; None for tokens.

    Yields:
      A dict for each example, in order, with "linex_index" and "features" or, with `vectors`, "vector". "features"
      contains the values of each layer for each token, including [CLS] and [SEP], as in the original code. With
      `word_pooling`, it contains the values for each word, and the positions "start" and "end" of the word's
      characters. All values are rounded to six decimals.
    """
    run, truncated = encoder.compiled(vectors), 0
    pack = functools.partial(pack_words, tokenizer) if word_pooling else tokenizer.pack
    replicas, is_tpu = encoder.strategy.num_replicas_in_sync, hardware.is_tpu(encoder.strategy)
    for start in range(0, len(examples), batch_size):
        packed = [pack(*texts, max_seq_length) for texts in examples[start : start + batch_size]]
        truncated += sum(row[-1] for row in packed)
        rows = batch_size if is_tpu else len(packed)  # a TPU compiles the graph again for each shape
        copies = packed[-1:] * (rows - len(packed) + -rows % replicas)
        values = run(packing.pad_all([row[:2] for row in packed + copies], max_seq_length if is_tpu else 0))
        for number, (sequence, row) in enumerate(zip(packed, values, strict=False), start):
            if vectors is not None:
                yield {"linex_index": number, "vector": _rounded(row)}
                continue
            if word_pooling:
                words = sequence[2]
                named = [{"token": word.text, "start": word.start, "end": word.end} for word in words]
                row = word_vectors(row, words, word_pooling)
            else:
                named = [{"token": token} for token in tokenizer.convert_ids_to_tokens(sequence[0])]
            features = [{**name, "layers": _by_layer(encoder.layers, x)} for name, x in zip(named, row, strict=False)]
            yield {"linex_index": number, "features": features}
    if word_pooling:
        report_truncated_words(truncated, "--input_file", max_seq_length)
    else:
        report_truncation(truncated, len(examples), "--input_file", max_seq_length)


def _by_layer(layers: Sequence[int | str], states: np.ndarray) -> list[dict[str, Any]]:
    return [{"index": layer, "values": _rounded(x)} for layer, x in zip(layers, states, strict=True)]


def _rounded(values: np.ndarray) -> list[float]:
    return [round(float(x), 6) for x in values]


def write_features(path: str, features: Iterator[dict[str, Any]], total: int) -> None:
    """Writes one JSON object per line. The file appears only when it is complete."""
    with files.replacing(path) as writer, reporting.progress_bar(total, "extract", unit="line") as bar:
        for line in features:
            writer.write(json.dumps(line) + "\n")
            bar.update(1)
