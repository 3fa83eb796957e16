"""Fine-tunes BERT for classification, regression, multiple choice and tagging: train, evaluate, predict, export."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bert_tf import program_flags
from bert_tf.finetuning.finetuning_config import FinetuningConfig
from bert_tf.runtime import files, program
from bert_tf.serving.export_config import ExportConfig, check_no_bilstm
from bert_tf.tasks.data_config import DataConfig, FeatureConfig, parse

if TYPE_CHECKING:
    from bert_tf.config import BertConfig
    from bert_tf.tasks.tagging.by_features import FeatureBased

_CONFIG = program_flags.SettingsFlags(FinetuningConfig, output_dir=None, num_workers=0)
_DATA = program_flags.SettingsFlags(DataConfig, task_name=None)
_FEATURES = program_flags.SettingsFlags(FeatureConfig)
_EXPORT = program_flags.ExportFlags(is_step=True)
# Defaults for a BiLSTM, which is randomly initialised. The other defaults are for pre-trained weights.
_BILSTM_DEFAULTS = {"learning_rate": 1e-3, "num_train_epochs": 10.0}


def main() -> None:
    """Runs the steps that the flags select."""
    config, data, features = read_settings()
    program.require_one("do_train", "do_eval", "do_predict", "do_export")
    names, output_dir = parse(data.task_name), config.training.output_dir
    export_config = _EXPORT.config() if _EXPORT.do_export else None
    if export_config is None or config.do_train or config.do_eval or config.do_predict:
        from bert_tf.checkpoints import pretrained, run_directory
        from bert_tf.finetuning.finetune import finetune
        from bert_tf.tasks import glue_benchmark, registry

        model = pretrained.read_model(config.model, output_dir)
        feature_based = make_feature_based(config, features, model[0]) if features.layers else None
        if feature_based:
            config = config.replace(model=config.model.replace(init_checkpoint=None))
        if export_config is not None:
            start = run_directory.recorded_bilstm(config.model.init_checkpoint)
            check_no_bilstm(bool(feature_based or config.bilstm or start), "--do_export")
        if len(names) > 1:
            glue_benchmark.finetune_tasks(names, data, config, model)
        else:
            directory = output_dir
            if not config.do_train:  # the model may come from --init_checkpoint
                directory = (
                    pretrained.find_files(config.model, run_directory.directory_of_model(output_dir)).directory
                    or directory
                )
            task = registry.build_task(data.replace(task_name=names[0]), directory, config.do_train, feature_based)
            finetune(task, config, model)
    is_dry_run = config.training.dry_run
    if export_config is not None and not (is_dry_run and config.do_train):
        export(names, output_dir, export_config, is_dry_run)


def read_settings() -> tuple[FinetuningConfig, DataConfig, FeatureConfig]:
    """Returns the settings that the flags contain."""
    features = _FEATURES.config()
    if features.layers:
        program.set_defaults(_BILSTM_DEFAULTS)
    program.check_needs()
    config = _CONFIG.config(flags=program.flag_values())
    config.distribution.check_tf_config()
    files.check_output_directory(config.training.output_dir, "--output_dir")
    if features.directory:
        files.check_output_directory(features.directory, "--features_dir")
    program.require_files("train_file", "dev_file", "test_file", "vocab_file", "bert_config_file")
    return config, _DATA.config(), features


def export(names: Sequence[str], output_dir: str, config: ExportConfig, dry_run: bool) -> None:
    """Exports the fine-tuned model. If there are several tasks, each model gets its own directory."""
    from bert_tf.export import export_run
    from bert_tf.tasks.glue_benchmark import task_directory

    if len(names) == 1:
        export_run(output_dir, _EXPORT.export_dir, config, dry_run)
        return
    for name in names:
        directories = (task_directory(root, name) for root in (output_dir, _EXPORT.export_dir))
        export_run(*directories, config, dry_run)


def make_feature_based(config: FinetuningConfig, features: FeatureConfig, model: "BertConfig") -> "FeatureBased":
    """Returns the settings of feature-based tagging, including the frozen model."""
    from bert_tf.distribution import strategies
    from bert_tf.distribution.devices import DistributionConfig
    from bert_tf.features import FrozenEncoder
    from bert_tf.tasks.tagging.by_features import FeatureBased

    is_dry_run = config.training.dry_run
    strategy = strategies.build_strategy(DistributionConfig(), dry_run=True) if is_dry_run else None
    encoder = FrozenEncoder(model, config.model.init_checkpoint, features.layers, "--feature_layers", strategy)
    return FeatureBased(encoder, features.combination, config.bilstm_units, features.directory, is_dry_run)


def cli() -> None:
    """Runs this module as a command."""
    program.run(main, required=["task_name", "output_dir"])


if __name__ == "__main__":
    cli()
