"""Writes the activations of a pre-trained model for each text in a file, as JSON lines."""

from absl import flags

from bert_tf import program_flags
from bert_tf.distribution.devices import DistributionConfig
from bert_tf.runtime import files, program
from bert_tf.sequences import packing

# The release's flags.
_INPUT_FILE = flags.DEFINE_string(
    "input_file", None, "A file with one text per line, or a pair of texts with ' ||| ' between them."
)
_OUTPUT_FILE = flags.DEFINE_string("output_file", None, "The file for the JSON lines.")
_LAYERS = flags.DEFINE_string(
    "layers", "-1,-2,-3,-4", "Layers, separated by commas; 0 is the first layer, -1 the last."
)
_MODEL = program_flags.ModelFlags()
_MAX_SEQ_LENGTH = flags.DEFINE_integer("max_seq_length", 128, "Longer sequences are cut to this length.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 32, "Number of lines that are computed together.", lower_bound=1)
_USE_TPU = flags.DEFINE_bool("use_tpu", False, "Run on a TPU.")
_MASTER = flags.DEFINE_string("master", None, "The name or the grpc:// address of the TPU.")
_NUM_TPU_CORES = flags.DEFINE_integer("num_tpu_cores", 0, "Number of cores the TPU must have; 0 for any.")
_USE_ONE_HOT = flags.DEFINE_bool(
    "use_one_hot_embeddings", False, "Look up embeddings with matrix products; faster on a TPU."
)


def main() -> None:
    """Loads the encoder, computes the activations and writes them."""
    files.check_output_files([_OUTPUT_FILE.value], "--output_file", {"--input_file": [_INPUT_FILE.value]})
    packing.check_max_seq_length(_MAX_SEQ_LENGTH.value)
    from bert_tf import checkpoints, features
    from bert_tf.checkpoints import pretrained
    from bert_tf.distribution.strategies import build_strategy

    config, tokenizer = _MODEL.read()
    config.check_sequence_length(_MAX_SEQ_LENGTH.value)
    layers = features.layer_numbers(_LAYERS.value, config.num_hidden_layers)
    examples = features.read_examples(_INPUT_FILE.value)
    strategy = build_strategy(
        DistributionConfig(
            "tpu" if _USE_TPU.value else "one_device", _MASTER.value or "", num_tpu_cores=_NUM_TPU_CORES.value
        )
    )
    with strategy.scope():
        source = checkpoints.open_checkpoint(_MODEL.init_checkpoint)
        encoder, summary = pretrained.restored_encoder(config, source, use_one_hot_embeddings=_USE_ONE_HOT.value)
    program.say(str(summary))
    lines = features.extract(
        encoder,
        tokenizer,
        examples,
        layers=layers,
        max_seq_length=_MAX_SEQ_LENGTH.value,
        batch_size=_BATCH_SIZE.value,
        strategy=strategy,
    )
    features.write_features(_OUTPUT_FILE.value, lines, len(examples))
    program.say(f"Wrote {len(examples)} lines to {_OUTPUT_FILE.value}.")


def cli() -> None:
    """Runs this module as a command."""
    program.run(main, required=["input_file", "init_checkpoint", "output_file"])


if __name__ == "__main__":
    cli()
