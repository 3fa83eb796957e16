"""Maps the names of --task_name to tasks, and tasks to their exportable models."""

import os
from collections.abc import Callable, Mapping
from typing import Any

from bert_tf.checkpoints import output_layers, run_directory
from bert_tf.finetuning.task import ReportingTask
from bert_tf.runtime import files
from bert_tf.runtime.files import InputError
from bert_tf.serving.exportable import Exportable, FinishedRun
from bert_tf.tasks import dev_split, graph_classifier, multiple_choice, tables, text
from bert_tf.tasks.data_config import TAGGING, TEXT, DataConfig, check_name
from bert_tf.tasks.glue import DEFINITIONS, GlueTask
from bert_tf.tasks.multiple_choice import MultipleChoiceTask
from bert_tf.tasks.squad import graph_answerer
from bert_tf.tasks.squad.squad_task import SquadTask
from bert_tf.tasks.tables import Source
from bert_tf.tasks.tagging import graph_tagger, tagging_task
from bert_tf.tasks.tagging.by_features import FeatureBased, FeatureTaggingTask
from bert_tf.tasks.tagging.tagging_task import TaggingTask
from bert_tf.tasks.text import TextTask

# Maps settings of `DataConfig` that only some tasks have to these tasks. GLUE's files have fixed names.
_TASKS_OF_SETTINGS = {
    **dict.fromkeys(
        ("train_file", "dev_file", "test_file", "dev_fraction"), (*multiple_choice.FILE_NAMES, TEXT, TAGGING)
    ),
    "xnli_language": ("xnli",),
    **dict.fromkeys(("columns", "problem", "class_weights", "label_threshold", "documents"), (TEXT,)),
    "labels": (TEXT, TAGGING),
    **dict.fromkeys(("document_context", "tag_scheme", "word_column", "tag_column"), (TAGGING,)),
    "delimiter": (TEXT, "multiple_choice"),
}


def build_task(
    config: DataConfig, model_dir: str, do_train: bool, feature_based: FeatureBased | None = None
) -> ReportingTask:
    """Returns the task.

    Args:
      config: the task and its data.
      model_dir: the directory of the model. Without training, classes and thresholds are read from it.
      do_train: whether the model is trained.
      feature_based: the settings of feature-based tagging; None to fine-tune.

    Raises:
      InputError: if there is no such task, its files are not given, or the task does not have one of the settings.
    """
    if config.dev_fraction and config.dev_file:
        raise InputError("--dev_fraction: can't be combined with --dev_file. Omit one of them.")
    task = _build(config, model_dir, do_train, feature_based)
    if config.selection_metric and config.selection_metric not in task.metric_names:
        scores = ", ".join(task.metric_names)
        raise InputError(f"--selection_metric: {task.name} has no {config.selection_metric}. Use {scores}.")
    if task.name == TAGGING:
        return task
    if isinstance(config.test_file, str):  # predictions for another test file must not overwrite earlier ones
        task.output_names = {"test": tables.split_name(config.test_file)[0]}
    if config.dev_fraction:
        has_classes = config.problem != "regression"
        task.examples = dev_split.with_held_out_dev(task.examples, config.dev_fraction, has_classes=has_classes)
    if config.selection_metric:
        task.selection_metric = config.selection_metric
    return task


def _build(config: DataConfig, model_dir: str, do_train: bool, feature_based: FeatureBased | None) -> ReportingTask:
    name = check_name(config.task_name)
    _check_settings(config, name)
    if feature_based and name != TAGGING:
        raise InputError(f"--feature_layers: only for --task_name={TAGGING}. Omit it with --task_name={name}.")
    if name in DEFINITIONS:
        if not config.data_dir:
            raise InputError("--data_dir is required. Pass the folder of the task's files.")
        return GlueTask(name, config.data_dir, config.on_bad_row, config.xnli_language)
    recorded = None if do_train else run_directory.recorded_labels(model_dir)
    if config.labels and recorded and list(config.labels) != recorded:
        raise InputError(f"--labels: the run in {model_dir} was trained with {', '.join(recorded)}. Omit them.")
    if config.labels and len(set(config.labels)) < len(config.labels):
        raise InputError(f"--labels: {', '.join(config.labels)} has duplicates. Remove them.")
    labels = config.labels or recorded
    # Predictions for another test file must not overwrite earlier ones.
    output_names = {"test": tables.split_name(config.test_file)[0]} if isinstance(config.test_file, str) else {}
    if name == TEXT:
        text_task = TextTask(
            _paths(config, text.FILE_NAMES),
            config.columns,
            problem=config.problem,
            labels=labels,
            class_weights=config.class_weights if do_train else "",  # used in training only
            on_bad_row=config.on_bad_row,
            delimiter=config.delimiter,
            label_threshold=config.label_threshold,
            documents=config.documents,
        )
        folder = "" if do_train else run_directory.folder_of_model(model_dir)
        if folder and config.label_threshold in ("", text.TUNE):
            text_task.label_threshold = run_directory.label_threshold(folder)
        if folder:
            text_task.target_scale = output_layers.recorded_scale(_recorded_run(model_dir))
        return text_task
    if name == TAGGING:
        paths, run = _paths(config, tagging_task.FILE_NAMES), _recorded_run(model_dir) if recorded else {}
        arguments = config, paths, labels, run, output_names
        return FeatureTaggingTask(feature_based, *arguments) if feature_based else TaggingTask(*arguments)
    return MultipleChoiceTask(
        name, _paths(config, multiple_choice.FILE_NAMES[name]), config.on_bad_row, delimiter=config.delimiter
    )


def _recorded_run(model_dir: str) -> Mapping[str, Any]:
    """Returns the settings of the run in a directory, which need not exist yet; empty if there is no run."""
    folder = run_directory.folder_of_model(model_dir)
    return run_directory.recorded(folder) if files.exists(folder) else {}


def _check_settings(config: DataConfig, name: str) -> None:
    """Raises an InputError if a setting is given that the task does not have."""
    defaults = DataConfig(config.task_name)
    for setting, tasks in _TASKS_OF_SETTINGS.items():
        if name not in tasks and getattr(config, setting) != getattr(defaults, setting):
            flag = {"columns": "text_column", "documents": "long_documents"}.get(setting, setting)
            raise InputError(f"--{flag}: only for --task_name={', '.join(tasks)}. Omit it with --task_name={name}.")


def _paths(config: DataConfig, names: dict[str, tuple[str, ...]]) -> dict[str, Source]:
    """Returns the file of each split: the given one, or the one in the folder. Splits without a file are missing.

    Raises:
      InputError: if neither a folder nor a file is given, a given file is missing or empty, or the folder has several
        files for a split.
    """
    given = {"train": config.train_file, "dev": config.dev_file, "test": config.test_file}
    if not config.data_dir and not any(given.values()):
        raise InputError("--data_dir is required. Pass it, or --train_file, --dev_file and --test_file.")
    paths: dict[str, Source] = {}
    for split, candidates in names.items():
        if source := given[split]:
            paths[split] = files.require_file(source, f"--{split}_file") if isinstance(source, str) else source
        elif config.data_dir:
            in_folder = [os.path.join(config.data_dir, name) for name in candidates]
            found = list(filter(files.exists, in_folder))
            if len(found) > 1:
                raise InputError(f"{' and '.join(found)} both exist. Name one with --{split}_file, or remove one.")
            if found:
                paths[split] = found[0]
    return paths


_EXPORTABLES: Mapping[str, Callable[[FinishedRun], Exportable]] = {
    **dict.fromkeys(DEFINITIONS, graph_classifier.exportable_glue),
    **dict.fromkeys(multiple_choice.FILE_NAMES, graph_classifier.exportable_chooser),
    TEXT: graph_classifier.exportable_text,
    TAGGING: graph_tagger.exportable_tagger,
    SquadTask.name: graph_answerer.exportable_answerer,
}


def exportable(run: FinishedRun) -> Exportable:
    """Returns the exportable model of a finished run.

    Raises:
      InputError: if the run's task is unknown, or the model can't be read or converted.
    """
    name = run.settings["task"]
    if name not in _EXPORTABLES:
        names = ", ".join(_EXPORTABLES)
        raise InputError(f"--model_dir: {run.folder}/run.json has the unknown task {name!r}. Known tasks: {names}.")
    return _EXPORTABLES[name](run)
