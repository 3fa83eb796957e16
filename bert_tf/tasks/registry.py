"""Maps the names of --task_name to tasks, and tasks to exportable models."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bert_tf.checkpoints import pretrained, run_directory
from bert_tf.finetuning.finetuning_config import FinetuningConfig
from bert_tf.finetuning.task import ReportingTask
from bert_tf.runtime import files
from bert_tf.runtime.files import InputError
from bert_tf.serving.exportable import Exportable, FinishedRun
from bert_tf.tasks import dev_split, graph_classifier, graph_heads, multiple_choice, own_tasks, tables
from bert_tf.tasks.data_config import TAGGING, TEXT, DataConfig, check_name
from bert_tf.tasks.glue import DEFINITIONS, GlueTask
from bert_tf.tasks.multiple_choice import MultipleChoiceTask
from bert_tf.tasks.squad import graph_predictor
from bert_tf.tasks.squad.squad_task import SquadTask
from bert_tf.tasks.tagging import graph_tagger, tagging_task
from bert_tf.tasks.tagging.by_features import FeatureBased, FeatureTaggingTask
from bert_tf.tasks.tagging.tagging_task import TaggingTask
from bert_tf.tasks.text import TextTask


def build_task(
    config: DataConfig,
    model_dir: str,
    do_train: bool,
    feature_based: FeatureBased | None = None,
    examples: Mapping[str, Sequence[Any]] | None = None,
) -> ReportingTask:
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
    name = check_name(config.task_name)
    config.replace(task_name=name).check_needs()
    has_own_data = name not in DEFINITIONS and not own_tasks.find(name)
    recorded = run_directory.recorded_labels(model_dir) if has_own_data and not do_train else None
    if config.labels and recorded and list(config.labels) != recorded:
        raise InputError(f"--labels: the run in {model_dir} was trained with {', '.join(recorded)}. Omit them.")
    if config.labels and len(set(config.labels)) < len(config.labels):
        raise InputError(f"--labels: {', '.join(config.labels)} has duplicates. Remove them.")
    labels = config.labels or recorded
    # Predictions for another test file must not overwrite earlier ones.
    output_names = {"test": tables.split_name(config.test_file)[0]} if config.test_file else {}
    task: ReportingTask
    if own := own_tasks.find(name):
        task = _own_task(own.build(config), config, output_names)
    elif name in DEFINITIONS:
        if not config.data_dir:
            raise InputError("--data_dir is required. Pass the directory of the task's files.")
        reading = {"on_bad_row": config.on_bad_row, "language": config.xnli_language}
        task = GlueTask(name, config.data_dir, config.selection_metric, **reading)
    elif name == TEXT:
        trained_in = None if do_train else run_directory.directory_of_model(model_dir)
        task = TextTask(config, examples or _paths(config, tables.FILE_NAMES), labels, trained_in, output_names)
    elif name == TAGGING:
        sources, run = examples or _paths(config, tagging_task.FILE_NAMES), _recorded_run(model_dir) if recorded else {}
        arguments = config, sources, labels, run, output_names
        task = FeatureTaggingTask(feature_based, *arguments) if feature_based else TaggingTask(*arguments)
    else:
        sources = examples or _paths(config, multiple_choice.FILE_NAMES[name])
        task = MultipleChoiceTask(name, config, sources, output_names)
    if config.selection_metric and config.selection_metric not in task.metric_names:
        scores = ", ".join(task.metric_names)
        raise InputError(f"--selection_metric: {task.name} has no {config.selection_metric}. Use {scores}.")
    return task


def model_directory(config: FinetuningConfig) -> str:
    """Returns the directory of the model: the run's, or without training also the directory of `init_checkpoint`."""
    output_dir = config.training.output_dir
    if config.do_train:
        return output_dir
    return pretrained.find_files(config.model, run_directory.directory_of_model(output_dir)).directory or output_dir


def _own_task(task: ReportingTask, config: DataConfig, output_names: Mapping[str, str]) -> ReportingTask:
    """Applies the settings that all tasks have to a registered task, and returns the task."""
    task.output_names = output_names
    task.examples = dev_split.with_held_out_dev(task.examples, config.dev_fraction)
    task.selection_metric = config.selection_metric or task.selection_metric
    return task


def _recorded_run(model_dir: str) -> Mapping[str, Any]:
    """Returns the settings of the run in a directory; empty if there is no run or no directory."""
    directory = run_directory.directory_of_model(model_dir)
    return run_directory.recorded(directory) if files.exists(directory) else {}


def _paths(config: DataConfig, names: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Returns the file of each split: the given file, or else a file in the directory. Omits splits without a file.

    Raises:
      InputError: if neither a directory nor a file is given, a given file is missing or empty, or the directory has
        several files for a split.
    """
    given = {"train": config.train_file, "dev": config.dev_file, "test": config.test_file}
    if not config.data_dir and not any(given.values()):
        raise InputError("--data_dir is required. Pass it, or --train_file, --dev_file and --test_file.")
    paths: dict[str, str] = {}
    for split, candidates in names.items():
        if path := given[split]:
            paths[split] = files.require_file(path, f"--{split}_file")
        elif config.data_dir:
            in_directory = [os.path.join(config.data_dir, name) for name in candidates]
            found = list(filter(files.exists, in_directory))
            if len(found) > 1:
                raise InputError(f"{' and '.join(found)} both exist. Name one with --{split}_file, or remove one.")
            if found:
                paths[split] = found[0]
    return paths


_EXPORTABLES: Mapping[str, Callable[[FinishedRun], Exportable]] = {
    **dict.fromkeys((*DEFINITIONS, TEXT), graph_classifier.exportable_classifier),
    **dict.fromkeys(multiple_choice.FILE_NAMES, graph_classifier.exportable_chooser),
    TAGGING: graph_tagger.exportable_tagger,
    SquadTask.name: graph_predictor.exportable_predictor,
}


def exportable(run: FinishedRun) -> Exportable:
    """Returns the exportable model of a finished run.

    Raises:
      InputError: if the run's task is unknown, or the model can't be read or converted.
    """
    name = run.settings["task"]
    if own := own_tasks.find(name):
        return (own.export or graph_heads.exportable)(run)
    if name not in _EXPORTABLES:
        raise InputError(
            f"--model_dir: {run.directory}/run.json has the unknown task {name!r}. Known tasks: "
            f"{', '.join(_EXPORTABLES)}. Export a task of your own with its program and --do_export."
        )
    return _EXPORTABLES[name](run)
