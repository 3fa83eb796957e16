"""The activations of a frozen encoder for each token, as features for other models (paper, section 5.3).

The input and output formats are the same as in the original extract_features.py.
"""

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from bert_tf import checkpoints
from bert_tf.checkpoints import pretrained
from bert_tf.config import BertConfig
from bert_tf.distribution import strategies
from bert_tf.distribution.devices import DistributionConfig
from bert_tf.encoder import BertEncoder
from bert_tf.runtime import files, first_bytes, reporting
from bert_tf.runtime.files import InputError
from bert_tf.runtime.program import say
from bert_tf.sentence_vectors import VectorConfig, check_layers
from bert_tf.text import Tokenizer, packing

# Name of the embedding output, the input of the first encoder block, in lists of layers.
EMBEDDINGS = "embeddings"


@dataclasses.dataclass(frozen=True)
class TextLine:
    """A line of the input file.

    Attributes:
      unique_id: the index of the line.
      text_a: the text before " ||| ", or the whole line.
      text_b: the text after " ||| ", or None.
    """

    unique_id: int
    text_a: str
    text_b: str | None


def read_examples(input_file: str, prompt: str = "", flag_name: str = "--input_file") -> list[TextLine]:
    """Reads a file with one text or one pair of texts ("a ||| b") per line, and puts the prompt before each.

    Args:
      input_file: the file.
      prompt: a text to put before each text, or before the first text of a pair.
      flag_name: the flag that gave the path, for messages.

    Raises:
      InputError: if the file is missing, empty or not UTF-8, or is JSON or a table.
    """
    text = files.read_text(input_file, flag_name)
    if found := first_bytes.format_of_lines(text):
        raise InputError(
            f"{flag_name}: {input_file} is {found}, but each line must be a text. Write one text per line. In Python, "
            "bert_tf.SentenceEncoder encodes the columns of tables."
        )
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if not lines[-1]:
        lines.pop()
    examples = []
    for number, line in enumerate(line.strip() for line in lines):
        pair = re.match(r"^(.*) \|\|\| (.*)$", line)
        text_a, text_b = pair.groups() if pair else (line, None)
        examples.append(TextLine(number, prompt + text_a, text_b))
    return examples


def layer_numbers(layers: str, num_hidden_layers: int, flag_name: str = "--layers") -> list[int]:
    """Parses a list of layers such as "-1,-2". The first layer is 0, and the last one is -1.

    Args:
      layers: the text, with commas between the numbers.
      num_hidden_layers: the number of layers of the model.
      flag_name: the flag that gave the text, for messages.

    Raises:
      InputError: if a part is not a number, or if the model has no such layer.
    """
    try:
        numbers = [int(layer) for layer in layers.split(",")]
    except ValueError:
        raise InputError(f"{flag_name} is {layers!r}. Use integers separated by commas.") from None
    check_layers(numbers, num_hidden_layers, flag_name)
    return numbers


class FrozenEncoder:
    """A pre-trained encoder that is not trained further. It is built on one device on first use.

    Args:
      config: the config of the encoder.
      init_checkpoint: the checkpoint with its weights.
      layers: the layers to use, separated by commas: numbers as in `layer_numbers`, or "embeddings" (paper, Table 7).
      flag_name: the flag that gave `layers`, for messages.

    Raises:
      InputError: if the model has no such layer, or no checkpoint is given.
    """

    def __init__(self, config: BertConfig, init_checkpoint: str | None, layers: str, flag_name: str) -> None:
        if not init_checkpoint:
            raise InputError(f"{flag_name} requires --init_checkpoint, the model that computes the features. Pass it.")
        self.config = config
        self.init_checkpoint = init_checkpoint
        self.layers = [
            name if name == EMBEDDINGS else layer_numbers(name, config.num_hidden_layers, flag_name)[0]
            for name in layers.split(",")
        ]

    def activations(self, batch: Mapping[str, np.ndarray]) -> np.ndarray:
        """Computes the hidden states of the chosen layers.

        Args:
          batch: input_ids, input_mask and segment_ids [B, T].

        Returns:
          The hidden states of the F layers, float32 [B, T, F, H].
        """
        return self._compute(batch)["activations"]

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of the encoder's config and weights."""
        source = checkpoints.open_checkpoint(self.init_checkpoint)
        digest = hashlib.sha256(self.config.to_json_string().encode())
        for name in sorted(name for name in source.shapes if name.startswith("bert/")):
            digest.update(name.encode() + np.ascontiguousarray(source.read(name)).tobytes())
        return digest.hexdigest()

    @functools.cached_property
    def _compute(self) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
        strategy = strategies.build_strategy(DistributionConfig())
        encoder, summary = pretrained.restored_encoder(self.config, checkpoints.open_checkpoint(self.init_checkpoint))
        say(str(summary))

        def compute(batch: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            output = encoder(batch["input_ids"], batch["input_mask"], batch["segment_ids"])
            states = {EMBEDDINGS: output.embedding_output, **dict(enumerate(output.all_encoder_layers))}
            count = len(output.all_encoder_layers)
            names = [name if name == EMBEDDINGS else name % count for name in self.layers]
            return {"activations": tf.stack([states[name] for name in names], axis=2)}

        return strategies.replicated(compute, strategy)


def extract(
    encoder: BertEncoder,
    tokenizer: Tokenizer,
    examples: Sequence[TextLine],
    *,
    layers: Sequence[int],
    max_seq_length: int,
    batch_size: int,
    strategy: tf.distribute.Strategy,
    vectors: VectorConfig | None = None,
) -> Iterator[dict]:
    """Computes the activations of all examples, or one vector per example.

    Args:
      encoder: the encoder.
      tokenizer: the tokenizer.
      examples: the texts.
      layers: the layers, as `layer_numbers` returns them.
      max_seq_length: longer sequences are truncated to this number of tokens.
      batch_size: number of examples per batch.
      strategy: the strategy in whose scope the encoder was built.
      vectors: how to compute a vector from these layers; None for the activations of each token.

    Yields:
      For each example, in order, "linex_index" and either "vector" or, as the original code writes, for each
      token (including [CLS] and [SEP]) the values of each layer. All values are rounded to six decimals.
    """

    def activations(batch: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        output = encoder(batch["input_ids"], batch["input_mask"], batch["segment_ids"])
        states = {str(layer): tf.cast(output.all_encoder_layers[layer], tf.float32) for layer in layers}
        if vectors is None:
            return states
        pooled = output.pooled_output if vectors.pooling == "pooled" else tf.concat(list(states.values()), axis=-1)
        return {"vector": vectors.vectors(pooled, batch["input_mask"])}

    run = strategies.replicated(activations, strategy)
    truncated = 0
    replicas, is_tpu = strategy.num_replicas_in_sync, strategies.is_tpu(strategy)
    for start in range(0, len(examples), batch_size):
        batch = examples[start : start + batch_size]
        tokenized = [_tokenize(example, tokenizer, max_seq_length) for example in batch]
        packed = [(tokenizer.convert_tokens_to_ids(tokens), segments) for tokens, segments, _ in tokenized]
        truncated += sum(is_truncated for _, _, is_truncated in tokenized)
        rows = batch_size if is_tpu else len(packed)  # a TPU compiles the graph again for each shape
        packed += packed[-1:] * (rows - len(packed) + -rows % replicas)
        values = run(packing.pad_all(packed, max_seq_length if is_tpu else 0))
        for row, (example, (tokens, *_)) in enumerate(zip(batch, tokenized, strict=True)):
            if vectors is not None:
                yield {"linex_index": example.unique_id, "vector": [round(float(x), 6) for x in values["vector"][row]]}
                continue
            yield {
                "linex_index": example.unique_id,
                "features": [
                    {
                        "token": token,
                        "layers": [
                            {"index": layer, "values": [round(float(x), 6) for x in values[str(layer)][row, position]]}
                            for layer in layers
                        ],
                    }
                    for position, token in enumerate(tokens)
                ],
            }

    reporting.report_truncation(truncated, len(examples), "--input_file", max_seq_length)


def _tokenize(example: TextLine, tokenizer: Tokenizer, max_seq_length: int) -> tuple[list[str], list[int], bool]:
    """Returns the tokens, the segment ids, and whether tokens were removed."""
    whole_a, whole_b = tokenizer.tokenize(example.text_a), tokenizer.tokenize(example.text_b or "")
    a, b = packing.fit_segments(whole_a, whole_b, max_seq_length)
    is_truncated = len(a) + len(b) < len(whole_a) + len(whole_b)
    return *packing.join_segments(a, b, cls="[CLS]", sep="[SEP]"), is_truncated


def write_features(path: str, features: Iterator[dict], total: int) -> None:
    """Writes one JSON object per line. The file appears completely or not at all."""
    with files.replacing(path) as writer, reporting.progress_bar(total, "extract", unit="line") as bar:
        for line in features:
            writer.write(json.dumps(line) + "\n")
            bar.update(1)
