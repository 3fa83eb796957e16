"""`bert_tf.load`: a pre-trained or fine-tuned encoder from any format, with its tokenizer and config."""

import dataclasses
import os

import numpy as np

from bert_tf import checkpoints
from bert_tf.checkpoints import run_directory
from bert_tf.config import BertConfig
from bert_tf.encoder import BertEncoder, EncoderOutput
from bert_tf.model.heads import MaskedLMHead
from bert_tf.runtime import files
from bert_tf.runtime.files import InputError
from bert_tf.sequences import packing
from bert_tf.tokenization import FullTokenizer, load_tokenizer
from bert_tf.tokenization.vocabulary import guess_casing

_CONFIG_FILES = (run_directory.CONFIG_FILE, "config.json")


@dataclasses.dataclass(frozen=True)
class LoadedBert:
    """What `load` returns: an encoder of texts, and what it is made of.

    Attributes:
      encoder: call it with input_ids [B, T] (and input_mask, segment_ids), arrays or tensors; see `BertEncoder`.
      tokenizer: None where there is no vocabulary beside the checkpoint.
      config: of the encoder.
      source: the checkpoint, for reading what else it holds.
    """

    encoder: BertEncoder
    tokenizer: FullTokenizer | None
    config: BertConfig
    source: checkpoints.CheckpointSource

    def masked_lm(self, flag_name: str) -> MaskedLMHead | None:
        """The checkpoint's masked-LM head, which reads the encoder's embedding table; None where it has none.

        Args:
          flag_name: how the user knows the checkpoint, for messages.

        Raises:
          InputError: if it has a part of one, or one of another size.
        """
        if "cls/predictions/output_bias" not in self.source.shapes:
            return None
        head = MaskedLMHead(self.config)
        variables = checkpoints.named_variables(head.weights)
        # What else is in the checkpoint, `load` has accounted for.
        checkpoints.restore(variables, self.source, may_be_fresh="", may_be_ignored=".*", flag_name=flag_name)
        return head

    def __call__(self, *texts: str | tuple[str, str], max_seq_length: int | None = None) -> EncoderOutput:
        """Encodes texts, and pairs of texts; B of them at once.

        Args:
          *texts: each becomes [CLS] A [SEP], or [CLS] A [SEP] B [SEP].
          max_seq_length: longer ones are cut as for fine-tuning; by default as many pieces as the model has
            positions. T is the length of the longest.

        Raises:
          InputError: if there are no texts, no vocabulary, or more positions than the model has.
        """
        if not texts:
            raise InputError("no text is given, but at least one is needed.")
        if self.tokenizer is None:
            raise InputError("texts can't be encoded: there is no vocab.txt beside the checkpoint.")
        max_seq_length = max_seq_length or self.config.max_position_embeddings
        packing.check_max_seq_length(max_seq_length)
        self.config.check_sequence_length(max_seq_length)
        sequences = []
        for text in texts:
            ids = [self.tokenizer.encode(part) for part in ((text,) if isinstance(text, str) else text)]
            a, b = packing.fit_segments(ids[0], ids[1] if len(ids) > 1 else None, max_seq_length)
            cls, sep = (self.tokenizer.vocab[token] for token in ("[CLS]", "[SEP]"))
            sequences.append(packing.join_segments(a, b, cls, sep))
        length = max(len(ids) for ids, _ in sequences)
        packed = [packing.pad(ids, segments, length) for ids, segments in sequences]
        return self.encoder(*(np.array(column, np.int32) for column in zip(*packed, strict=True)))


def load(path: str, do_lower_case: bool | None = None, dtype: str = "float32") -> LoadedBert:
    """Loads an encoder.

    Args:
      path: a folder or a checkpoint prefix, in the release's, Hugging Face's, Model Garden's or our own format; the
        config (bert_config.json or config.json) and vocab.txt lie beside it.
      do_lower_case: the tokenizer's casing; by default that of the run, or else what the vocabulary's letters say.
      dtype: of `BertEncoder`.

    Raises:
      InputError: if something is missing, or doesn't fit together.
    """
    checkpoint = checkpoints.find_checkpoint(path, "load()")
    folder = run_directory.folder_of_checkpoint(checkpoint)
    config = BertConfig.from_json_file(find_config(folder, "load()"), "load()")
    source = checkpoints.open_checkpoint(checkpoint, "load()")
    encoder, _ = restored_encoder(config, source, "load()", dtype=dtype, seed=None)
    vocab_file = os.path.join(folder, run_directory.VOCAB_FILE)
    tokenizer = None
    if files.exists(vocab_file):
        if do_lower_case is None:
            do_lower_case = _recorded_casing(folder, vocab_file)
        tokenizer = load_tokenizer(vocab_file, do_lower_case, checkpoint)
        config.check_vocabulary(len(tokenizer.vocab), vocab_file)
    return LoadedBert(encoder, tokenizer, config, source)


def restored_encoder(
    config: BertConfig, source: checkpoints.CheckpointSource, flag_name: str = "--init_checkpoint", **encoder_options
) -> tuple[BertEncoder, checkpoints.RestoreSummary]:
    """An encoder with a checkpoint's weights, left to right if the checkpoint's was; and what was read.

    Args:
      config: of the encoder.
      source: the checkpoint; what is in it besides an encoder is left out.
      flag_name: how the user knows it, for messages.
      encoder_options: see `BertEncoder`.

    Raises:
      InputError: if the config and the checkpoint don't fit together.
    """
    # With a random seed, the encoder would use up a number that the initial weights of later layers are drawn with.
    options = {"seed": 0} | encoder_options
    encoder = BertEncoder(config, causal=run_directory.is_causal(source.path), **options)
    variables = checkpoints.named_variables(encoder.weights)
    return encoder, checkpoints.restore(variables, source, may_be_fresh="", flag_name=flag_name)


def find_config(folder: str, flag_name: str) -> str:
    """The config file in a folder; the release's name goes first.

    Raises:
      InputError: if there is none.
    """
    for name in _CONFIG_FILES:
        if files.exists(os.path.join(folder, name)):
            return os.path.join(folder, name)
    raise InputError(f"{flag_name}: {folder or '.'} has no {' or '.join(_CONFIG_FILES)} beside the checkpoint.")


def _recorded_casing(folder: str, vocab_file: str) -> bool:
    """What the run or the tokenizer's settings say, or else the vocabulary's letters."""
    recorded = run_directory.recorded(folder).get("do_lower_case")
    if recorded is not None:
        return recorded
    settings_file = os.path.join(folder, "tokenizer_config.json")
    if files.exists(settings_file):
        recorded = files.read_json(settings_file, "load()").get("do_lower_case")
        if recorded is not None:
            return recorded
    return guess_casing(vocab_file)
