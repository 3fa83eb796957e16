"""Frozen activations: what the encoder says of each token, without fine-tuning (paper, section 5.3).

Reads and writes what the release's extract_features.py does.
"""

import dataclasses
import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from bert_tf import checkpoints
from bert_tf.checkpoints import pretrained
from bert_tf.config import BertConfig
from bert_tf.encoder import BertEncoder
from bert_tf.runtime import distribution, files, reporting
from bert_tf.runtime.files import InputError
from bert_tf.runtime.program import say
from bert_tf.sequences import packing
from bert_tf.tokenization import FullTokenizer

# What the first block reads, as a name among layers.
EMBEDDINGS = "embeddings"


@dataclasses.dataclass(frozen=True)
class TextLine:
    """A line of the input file.

    Attributes:
      unique_id: its number, from 0.
      text_a: the text before " ||| ", or all of it.
      text_b: the text after it; None where there is none.
    """

    unique_id: int
    text_a: str
    text_b: str | None


def read_examples(input_file: str) -> list[TextLine]:
    """Reads a file with a text, or a pair ("a ||| b"), on each line.

    Raises:
      InputError: if it is missing, empty or not UTF-8.
    """
    lines = files.read_text(input_file, "--input_file").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if not lines[-1]:
        lines.pop()
    examples = []
    for number, line in enumerate(line.strip() for line in lines):
        pair = re.match(r"^(.*) \|\|\| (.*)$", line)
        text_a, text_b = pair.groups() if pair else (line, None)
        examples.append(TextLine(number, text_a, text_b))
    return examples


def layer_numbers(layers: str, num_hidden_layers: int, flag: str = "--layers") -> list[int]:
    """Parses "-1,-2": layers counted from the first (0) or from the last (-1).

    Args:
      layers: the text.
      num_hidden_layers: how many there are.
      flag: where the text comes from, for messages.

    Raises:
      InputError: if one is no number, or there is no such layer.
    """
    try:
        numbers = [int(layer) for layer in layers.split(",")]
    except ValueError:
        raise InputError(f"{flag} is {layers!r}, but whole numbers separated by commas are expected.") from None
    for number in numbers:
        if not -num_hidden_layers <= number < num_hidden_layers:
            raise InputError(f"{flag}: there is no layer {number} in a model of {num_hidden_layers} layers.")
    return numbers


class FrozenEncoder:
    """A pre-trained encoder that is read, and never trained. It is built when it is first read, on one device.

    Args:
      config: of the encoder.
      init_checkpoint: its weights.
      layers: which layers are read: numbers as `layer_numbers` takes them, or "embeddings" (paper, Table 7).
      flag: where `layers` comes from, for messages.

    Raises:
      InputError: if there is no such layer, or no checkpoint is given.
    """

    def __init__(self, config: BertConfig, init_checkpoint: str | None, layers: str, flag: str) -> None:
        if not init_checkpoint:
            raise InputError(f"{flag} needs --init_checkpoint, the model whose layers are read.")
        self.config = config
        self.init_checkpoint = init_checkpoint
        self.layers = [
            name if name == EMBEDDINGS else layer_numbers(name, config.num_hidden_layers, flag)[0]
            for name in layers.split(",")
        ]

    def activations(self, batch: Mapping[str, np.ndarray]) -> np.ndarray:
        """input_ids, input_mask, segment_ids [B, T] -> the layers' hidden states [B, T, F, H], float32."""
        return self._read(batch)["activations"]

    @functools.cached_property
    def _read(self) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
        strategy = distribution.build_strategy(distribution.DistributionConfig())
        encoder, summary = pretrained.restored_encoder(self.config, checkpoints.open_checkpoint(self.init_checkpoint))
        say(str(summary))

        def read(batch: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            output = encoder(batch["input_ids"], batch["input_mask"], batch["segment_ids"])
            states = {EMBEDDINGS: output.embedding_output, **dict(enumerate(output.all_encoder_layers))}
            count = len(output.all_encoder_layers)
            names = [name if name == EMBEDDINGS else name % count for name in self.layers]
            return {"activations": tf.stack([states[name] for name in names], axis=2)}

        return distribution.replicated(read, strategy)


def extract(
    encoder: BertEncoder,
    tokenizer: FullTokenizer,
    examples: Sequence[TextLine],
    layers: Sequence[int],
    max_seq_length: int,
    batch_size: int,
    strategy: tf.distribute.Strategy,
) -> Iterator[dict]:
    """The activations of each example, in order.

    Args:
      encoder: the model.
      tokenizer: its tokenizer.
      examples: the texts.
      layers: which layers, as `layer_numbers` gives them.
      max_seq_length: longer sequences are cut.
      batch_size: examples that are computed together.
      strategy: where the encoder was built; its replicas share the work.

    Yields:
      For each example the object that the release writes: "linex_index" and, for each token with its [CLS] and [SEP]s,
      the values of each layer, rounded to six decimals.
    """

    def activations(batch: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        output = encoder(batch["input_ids"], batch["input_mask"], batch["segment_ids"])
        return {str(layer): tf.cast(output.all_encoder_layers[layer], tf.float32) for layer in layers}

    run = distribution.replicated(activations, strategy)
    replicas = strategy.num_replicas_in_sync
    for start in range(0, len(examples), batch_size):
        batch = examples[start : start + batch_size]
        tokenized = [_tokenize(example, tokenizer, max_seq_length) for example in batch]
        length = max(len(tokens) for tokens, _ in tokenized)
        packed = [packing.pad(tokenizer.convert_tokens_to_ids(t), segments, length) for t, segments in tokenized]
        packed += packed[-1:] * (-len(packed) % replicas)
        columns = zip(packing.PackedSequence._fields, zip(*packed, strict=True), strict=True)
        values = run({name: np.array(column, np.int32) for name, column in columns})
        for row, (example, (tokens, _)) in enumerate(zip(batch, tokenized, strict=True)):
            yield {
                "linex_index": example.unique_id,
                "features": [
                    {
                        "token": token,
                        "layers": [
                            {"index": layer, "values": [round(float(x), 6) for x in values[str(layer)][row, place]]}
                            for layer in layers
                        ],
                    }
                    for place, token in enumerate(tokens)
                ],
            }


def _tokenize(example: TextLine, tokenizer: FullTokenizer, max_seq_length: int) -> tuple[list[str], list[int]]:
    tokens_b = tokenizer.tokenize(example.text_b) if example.text_b else None
    a, b = packing.fit_segments(tokenizer.tokenize(example.text_a), tokens_b, max_seq_length)
    return packing.join_segments(a, b, cls="[CLS]", sep="[SEP]")


def write_features(path: str, features: Iterator[dict], total: int) -> None:
    """Writes one JSON object a line, whole or not at all."""
    with files.replacing(path) as writer, reporting.progress_bar(total, "extract", unit="line") as bar:
        for line in features:
            writer.write(json.dumps(line) + "\n")
            bar.update(1)
