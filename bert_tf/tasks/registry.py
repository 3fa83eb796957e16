"""The tasks by the names of --task_name."""

from collections.abc import Mapping, Sequence
from typing import Any

from bert_tf.checkpoints import pretrained, run_directory
from bert_tf.finetuning.finetuning_config import FinetuningConfig
from bert_tf.finetuning.task import Task
from bert_tf.runtime.files import InputError
from bert_tf.tasks import own_tasks, tables
from bert_tf.tasks.data_config import DataConfig, check_name
from bert_tf.tasks.sentences import multiple_choice
from bert_tf.tasks.sentences.glue import DEFINITIONS, GlueTask
from bert_tf.tasks.sentences.multiple_choice import MultipleChoiceTask
from bert_tf.tasks.sentences.own_files import TextTask
from bert_tf.tasks.sentences.similarity import SimilarityTask
from bert_tf.tasks.setup import Setup
from bert_tf.tasks.squad.squad_task import SquadTask
from bert_tf.tasks.tagging.by_features import FeatureBased, FeatureTaggingTask
from bert_tf.tasks.tagging.tagging_task import TaggingTask
from bert_tf.tasks.task_names import SIMILARITY, SQUAD, TAGGING, TEXT

# The classes of the built-in tasks. `build_task` does not build `SquadTask`, which has no --task_name.
TASKS: Mapping[str, type[Task]] = {
    **dict.fromkeys(DEFINITIONS, GlueTask),
    TEXT: TextTask,
    **dict.fromkeys(multiple_choice.FILE_NAMES, MultipleChoiceTask),
    TAGGING: TaggingTask,
    SIMILARITY: SimilarityTask,
    SQUAD: SquadTask,
}


def build_task(
    config: DataConfig,
    model_dir: str,
    do_train: bool,
    feature_based: FeatureBased | None = None,
    examples: Mapping[str, Sequence[Any]] | None = None,
) -> Task:
    """Returns the task.

    Args:
      config: the task and its data.
      model_dir: the directory of the model. Without training, classes and thresholds are read from it.
      do_train: whether the model is trained.
      feature_based: the settings of feature-based tagging; None to fine-tune.
      examples: maps splits to examples in memory, which replace the files.

    Raises:
      InputError: if there is no such task, a required file is not given, or a setting does not apply to the task.
    """
    config = config.replace(task_name=check_name(config.task_name))
    config.check_needs()
    if own_task := own_tasks.find(config.task_name):
        task = own_task.build(config)
    else:
        task_class = FeatureTaggingTask if feature_based else TASKS[config.task_name]
        task = task_class.build(Setup(config, model_dir, do_train, feature_based, examples))
    output_names = {}
    if config.test_file:  # keeps the predictions for other test files, and the files of dev splits
        name = tables.split_name(config.test_file)[0]
        output_names["test"] = f"test_{name}" if name in task.dev_splits else name
    if config.selection_metric and config.selection_metric not in task.metric_names:
        scores = ", ".join(task.metric_names)
        raise InputError(f"--selection_metric: {task.name} has no {config.selection_metric}. Use {scores}.")
    return task.replace(held_out=config.dev_fraction, chosen_metric=config.selection_metric, output_names=output_names)


def model_directory(config: FinetuningConfig) -> str:
    """Returns the directory of the model: the run's, or without training also the directory of `init_checkpoint`."""
    output_dir = config.training.output_dir
    if config.do_train:
        return output_dir
    return pretrained.find_files(config.model, run_directory.directory_of_model(output_dir)).directory or output_dir
