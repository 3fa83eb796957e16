"""Writes the activations of a pre-trained model, or a vector, for each text in a file, as JSON lines."""

from typing import TYPE_CHECKING, Annotated, Literal

from bert_tf import program_flags
from bert_tf.config import POOLINGS, WORD_POOLINGS, ModelFiles
from bert_tf.data_report.splits import report_inputs
from bert_tf.distribution.devices import DistributionConfig
from bert_tf.runtime import messages, path_checks, program
from bert_tf.runtime.settings import Settings, about, not_with, only_with

if TYPE_CHECKING:
    from bert_tf.sentence_vectors import VectorConfig


class ExtractionConfig(Settings, frozen=True):
    """The settings of the program. Unlike the original, it can write one vector per text or per word."""

    input_file: Annotated[
        str,
        about("File with one text, or two texts separated by ' ||| ', per line.", group="Texts and features"),
    ]
    output_file: Annotated[str, about("File to write, in JSON lines.")]
    layers: Annotated[str, about("Layers, separated by commas; 0 is the first layer, -1 the last.")] = "-1,-2,-3,-4"
    max_seq_length: Annotated[int, about("Longest sequence in tokens; longer ones are truncated.", ge=4)] = 128
    pooling: (
        Annotated[
            Literal[("auto", *POOLINGS)],
            about("Write one vector per text, from --layers (default -1). auto: as recorded with the model."),
        ]
        | None
    ) = None
    normalize: (
        Annotated[bool, about("Scale vectors to length 1. Default: as recorded with the model."), only_with("pooling")]
        | None
    ) = None
    word_vectors: Annotated[Literal[WORD_POOLINGS], about("Write one vector per word."), not_with("pooling")] | None = (
        None
    )
    batch_size: Annotated[int, about("Lines per batch.", ge=1)] = 32
    use_one_hot_embeddings: Annotated[
        bool, about("Look up embeddings with matrix multiplications; faster on a TPU.")
    ] = False


_CONFIG = program_flags.SettingsFlags(ExtractionConfig, input_file=None, output_file=None)
_MODEL = program_flags.SettingsFlags(ModelFiles)
_DEVICES = program_flags.SettingsFlags(
    DistributionConfig, only=["use_tpu", "tpu_name", "tpu_zone", "gcp_project", "num_tpu_cores", "master"]
)


def main() -> None:
    """Loads the encoder, computes the activations and writes them."""
    config, model_files, devices = read_settings()
    from bert_tf import features
    from bert_tf.checkpoints import pretrained
    from bert_tf.distribution.strategies import build_strategy

    model_files, vectors = find_vectors(config, model_files)
    bert_config, tokenizer = pretrained.read_model(model_files)
    bert_config.check_sequence_length(config.max_seq_length)
    layers = features.layer_numbers(config.layers, bert_config.num_hidden_layers)
    examples = features.read_examples(config.input_file, vectors.prompt if vectors else "")
    report_inputs((" ".join(filter(None, pair)) for pair in examples), tokenizer, "--input_file", once=True)
    checkpoint, lookup = model_files.init_checkpoint, config.use_one_hot_embeddings
    strategy = build_strategy(devices)
    encoder = features.FrozenEncoder(
        bert_config, checkpoint, config.layers, "--layers", strategy, use_one_hot_embeddings=lookup
    )
    if vectors is not None:
        has_pooler = encoder.encoder.pooler is not None
        vectors = vectors.replace(layers=tuple(layers)).with_prompt(vectors.prompt, tokenizer)
        vectors.check_model(bert_config.num_hidden_layers, has_pooler, checkpoint)
    sizes = {"max_seq_length": config.max_seq_length, "batch_size": config.batch_size}
    lines = features.extract(encoder, tokenizer, examples, **sizes, vectors=vectors, word_pooling=config.word_vectors)
    features.write_features(config.output_file, lines, len(examples))
    messages.say(f"Wrote {len(examples)} lines to {config.output_file}.")


def read_settings() -> tuple[ExtractionConfig, ModelFiles, DistributionConfig]:
    """Returns the settings that the flags contain, after all checks that need neither TensorFlow nor the data."""
    program.check_needs()
    if _CONFIG.given()["pooling"]:
        program.set_defaults({"layers": "-1"})
    config = _CONFIG.config()
    program.require_files("input_file", "vocab_file", "bert_config_file")
    path_checks.check_output_files([config.output_file], "--output_file", {"--input_file": [config.input_file]})
    return config, _MODEL.config(), _DEVICES.config()


def find_vectors(config: ExtractionConfig, model_files: ModelFiles) -> tuple[ModelFiles, "VectorConfig | None"]:
    """Returns the files of the encoder and, with --pooling, how to compute a vector of a text from its activations."""
    if not config.pooling:
        return model_files, None
    from bert_tf import sentence_vectors

    found = sentence_vectors.find(model_files.init_checkpoint, "--init_checkpoint")
    pooling = None if config.pooling == "auto" else config.pooling
    vectors = found.config.with_given(pooling=pooling, normalize=config.normalize)
    return model_files.replace(init_checkpoint=found.path), vectors


def cli() -> None:
    """Runs this module as a command."""
    program.run(main, required=["input_file", "init_checkpoint", "output_file"])


if __name__ == "__main__":
    cli()
