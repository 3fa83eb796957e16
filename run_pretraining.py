"""Pre-trains BERT with masked LM and next sentence prediction; evaluates and exports the model.

The input consists of TFRecord files from `data_prep.create_pretraining_data` or from the original program.
"""

from absl import flags

from bert_tf import program_flags
from bert_tf.pretraining.pretraining_config import PretrainingConfig
from bert_tf.pretraining.recipes import RECIPES
from bert_tf.runtime import path_checks, program
from bert_tf.runtime.errors import InputError
from bert_tf.serving.export_config import ExportConfig

_CONFIG = program_flags.SettingsFlags(PretrainingConfig, "run_pretraining", input_file=None, output_dir=None)
program.section("Model, data and directories")
_MODEL_SIZE = program_flags.ModelSizeFlags()
_RECIPE = flags.DEFINE_enum(
    "recipe",
    None,
    list(RECIPES),
    "Settings for a complete run, such as the paper's; flags that you pass take priority.",
)
_EXPORT = program_flags.ExportFlags(is_step=True)


def main() -> None:
    """Trains, evaluates and exports, as the flags select."""
    config, export_config = read_settings()
    from bert_tf.checkpoints import pretrained
    from bert_tf.distribution import strategies
    from bert_tf.export import export_run
    from bert_tf.pretraining.run import pretrain

    output_dir = config.training.output_dir
    start = pretrained.find_files(config.model, output_dir)
    if export_config is not None and config.do_train and not start.vocab_file:
        raise InputError("--vocab_file is missing. An exported model takes raw strings, so pass it with --do_export.")
    model = _MODEL_SIZE.config(config.model.bert_config_file, start.vocab_file, start.config_file)
    run, _ = pretrain(config, model, start.vocab_file or "")
    if export_config is not None and strategies.is_chief(run.strategy):
        export_run(output_dir, _EXPORT.export_dir, export_config)


def read_settings() -> tuple[PretrainingConfig, ExportConfig | None]:
    """Returns the settings that the flags contain, after all checks that need neither TensorFlow nor the data."""
    program.set_defaults(RECIPES.get(_RECIPE.value, {}))
    program.check_needs()
    program.require_one("do_train", "do_eval", "do_export")
    config = _CONFIG.config(flags=program.flag_values())
    path_checks.check_output_directory(config.training.output_dir, "--output_dir")
    program.require_files("vocab_file", "bert_config_file")
    if config.distribution.distribution_strategy != "multi_worker":  # other workers must see the error
        for data in filter(None, [*config.phases, config.held_out_data]):
            path_checks.expand_patterns(data.input_file, data.flag_name)
    export_config = _EXPORT.config() if _EXPORT.do_export else None
    config.distribution.check_tf_config()
    return config, export_config


def cli() -> None:
    """Runs this module as a command."""
    program.run(main, required=["input_file", "output_dir"])


if __name__ == "__main__":
    cli()
