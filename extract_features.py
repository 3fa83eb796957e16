"""Writes the activations of a pre-trained model for the texts of a file, as JSON lines."""

from absl import flags

from bert_tf import checkpoints, features
from bert_tf.checkpoints import pretrained
from bert_tf.config import BertConfig
from bert_tf.runtime import program
from bert_tf.runtime.distribution import DistributionConfig, build_strategy
from bert_tf.sequences import packing
from bert_tf.tokenization import load_tokenizer

# The release's flags.
_INPUT_FILE = flags.DEFINE_string("input_file", None, "A text, or a pair with ' ||| ' between, on each line.")
_OUTPUT_FILE = flags.DEFINE_string("output_file", None, "Where the JSON lines are written.")
_LAYERS = flags.DEFINE_string("layers", "-1,-2,-3,-4", "Layers, counted from the first (0) or from the last (-1).")
_BERT_CONFIG_FILE = flags.DEFINE_string("bert_config_file", None, "The bert_config.json of the model.")
_MAX_SEQ_LENGTH = flags.DEFINE_integer("max_seq_length", 128, "Longer sequences are cut.")
_INIT_CHECKPOINT = flags.DEFINE_string("init_checkpoint", None, "The pre-trained model, in any format.")
_VOCAB_FILE = flags.DEFINE_string("vocab_file", None, "The vocab.txt of the model.")
_DO_LOWER_CASE = flags.DEFINE_bool("do_lower_case", True, "True for uncased models, False for cased ones.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "Lines that are computed together.", lower_bound=1)
_USE_TPU = flags.DEFINE_bool("use_tpu", False, "Run on a TPU.")
_MASTER = flags.DEFINE_string("master", None, "Name or grpc:// address of the TPU.")
_NUM_TPU_CORES = flags.DEFINE_integer("num_tpu_cores", 8, "Cores that the TPU must have; 0 for any number.")
_USE_ONE_HOT = flags.DEFINE_bool("use_one_hot_embeddings", False, "Look words up by products; faster on TPU.")


def main() -> None:
    """Flags to an encoder, texts to activations."""
    packing.check_max_seq_length(_MAX_SEQ_LENGTH.value)
    config = BertConfig.from_json_file(_BERT_CONFIG_FILE.value)
    config.check_sequence_length(_MAX_SEQ_LENGTH.value)
    tokenizer = load_tokenizer(_VOCAB_FILE.value, _DO_LOWER_CASE.value, _INIT_CHECKPOINT.value)
    config.check_vocabulary(len(tokenizer.vocab), _VOCAB_FILE.value)
    layers = features.layer_numbers(_LAYERS.value, config.num_hidden_layers)
    examples = features.read_examples(_INPUT_FILE.value)
    strategy = build_strategy(
        DistributionConfig(
            "tpu" if _USE_TPU.value else "one_device", _MASTER.value or "", num_tpu_cores=_NUM_TPU_CORES.value
        )
    )
    with strategy.scope():
        source = checkpoints.open_checkpoint(_INIT_CHECKPOINT.value)
        encoder, summary = pretrained.restored_encoder(config, source, use_one_hot_embeddings=_USE_ONE_HOT.value)
    program.say(str(summary))
    lines = features.extract(encoder, tokenizer, examples, layers, _MAX_SEQ_LENGTH.value, _BATCH_SIZE.value, strategy)
    features.write_features(_OUTPUT_FILE.value, lines, len(examples))
    program.say(f"Wrote {len(examples)} lines to {_OUTPUT_FILE.value}.")


def cli() -> None:
    """Runs this module as a command."""
    program.run(main, required=["input_file", "vocab_file", "bert_config_file", "init_checkpoint", "output_file"])


if __name__ == "__main__":
    cli()
