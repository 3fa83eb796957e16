"""Fine-tunes BERT for classification, regression, multiple choice and tagging: train, evaluate, predict, export."""

from typing import TYPE_CHECKING

from bert_tf import program_flags
from bert_tf.finetuning.finetuning_config import FinetuningConfig
from bert_tf.runtime import path_checks, program
from bert_tf.serving.export_config import ExportConfig, check_no_bilstm
from bert_tf.tasks.data_config import DataConfig, FeatureConfig, parse
from bert_tf.tasks.task_names import SIMILARITY

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
    """Trains, evaluates, predicts and exports, as the flags select."""
    config, data, features, export_config = read_settings()
    from bert_tf.checkpoints import pretrained
    from bert_tf.export import check_can_export, export_run
    from bert_tf.finetuning.finetune import finetune
    from bert_tf.tasks import registry
    from bert_tf.tasks.sentences import glue_benchmark, similarity

    if data.task_name == SIMILARITY:
        config, data = similarity.from_model(config, data)
    names, output_dir = parse(data.task_name), config.training.output_dir
    if config.do_train or config.do_eval or config.do_predict:
        model = pretrained.read_model(config.model, output_dir)
        config, frozen = make_feature_based(config, features, model[0])
        if export_config is not None:
            check_can_export(config)
        if len(names) > 1:
            glue_benchmark.finetune_tasks(names, data, config, model)
        else:
            task = registry.build_task(data, registry.model_directory(config), config.do_train, frozen)
            finetune(task, config, model)
    if export_config is not None:
        for directories in glue_benchmark.export_directories(names, output_dir, _EXPORT.export_dir):
            export_run(*directories, export_config)


def read_settings() -> tuple[FinetuningConfig, DataConfig, FeatureConfig, ExportConfig | None]:
    """Returns the settings that the flags contain, after all checks that need neither TensorFlow nor the data."""
    features = _FEATURES.config()
    if features.layers:
        program.set_defaults(_BILSTM_DEFAULTS)
    program.check_needs()
    config = _CONFIG.config(flags=program.flag_values())
    config.distribution.check_tf_config()
    path_checks.check_output_directory(config.training.output_dir, "--output_dir")
    if features.directory:
        path_checks.check_output_directory(features.directory, "--features_dir")
    program.require_files("train_file", "dev_file", "test_file", "vocab_file", "bert_config_file")
    program.require_one("do_train", "do_eval", "do_predict", "do_export")
    data = _DATA.config()
    data = data.replace(task_name=",".join(parse(data.task_name)))
    if not _EXPORT.do_export:
        return config, data, features, None
    check_no_bilstm(bool(features.layers), "--do_export")
    confidence = data.confidence
    threshold = {"min_probability": confidence.min_probability, "abstain_label": confidence.abstain_label}
    return config, data, features, _EXPORT.config(**threshold)


def make_feature_based(
    config: FinetuningConfig, features: FeatureConfig, model: "BertConfig"
) -> tuple[FinetuningConfig, "FeatureBased | None"]:
    """Returns the settings of feature-based tagging, with the frozen model, or None without --feature_layers.

    The first result has the settings of the training, which starts without the weights of the frozen model.
    """
    if not features.layers:
        return config, None
    from bert_tf.features import FrozenEncoder
    from bert_tf.tasks.tagging.by_features import FeatureBased

    encoder = FrozenEncoder(model, config.model.init_checkpoint, features.layers, "--feature_layers")
    config = config.replace(model=config.model.replace(init_checkpoint=None))
    return config, FeatureBased(encoder, features.combination, config.bilstm_units, features.directory)


def cli() -> None:
    """Runs this module as a command."""
    program.run(main, required=["task_name", "output_dir"])


if __name__ == "__main__":
    cli()
