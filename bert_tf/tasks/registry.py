"""The tasks by their names in --task_name, and the exportable model of each."""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence

from bert_tf.checkpoints import run_directory
from bert_tf.finetuning.task import ReportingTask
from bert_tf.runtime import files
from bert_tf.runtime.files import InputError
from bert_tf.serving.exportable import Exportable
from bert_tf.serving.finished_run import FinishedRun
from bert_tf.tasks import dev_split, graph_classifier, multiple_choice, names, tables, text
from bert_tf.tasks.glue import DEFINITIONS, GlueTask
from bert_tf.tasks.multiple_choice import MultipleChoiceTask
from bert_tf.tasks.names import TAGGING, TEXT
from bert_tf.tasks.squad import graph_answerer
from bert_tf.tasks.squad.task import SquadTask
from bert_tf.tasks.tables import Source
from bert_tf.tasks.tagging import graph_tagger, task
from bert_tf.tasks.tagging.by_features import FeatureBased, FeatureTaggingTask
from bert_tf.tasks.tagging.task import TaggingTask
from bert_tf.tasks.text import Columns, TextTask

# The settings of `DataConfig` that only some tasks have, and these tasks. GLUE's files have fixed names.
_TASKS_OF_SETTINGS = {
    **dict.fromkeys(
        ("train_file", "dev_file", "test_file", "dev_fraction"), (*multiple_choice.FILE_NAMES, TEXT, TAGGING)
    ),
    "xnli_language": ("xnli",),
    **dict.fromkeys(("columns", "problem", "class_weights"), (TEXT,)),
    "labels": (TEXT, TAGGING),
    "document_context": (TAGGING,),
    "delimiter": (TEXT, "multiple_choice"),
}


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """The task and its data.

    Attributes:
      task_name: one of `names.TASK_NAMES`.
      data_dir: the folder of the task's files; None if all files are given.
      train_file: the training file, if it is not in the folder, or examples in memory. GLUE's files have fixed names.
      dev_file: the dev file, likewise.
      test_file: the test file, likewise.
      on_bad_row: "error" or "skip".
      xnli_language: the language of XNLI.
      columns: the columns of your own data.
      problem: the problem of your own data; see `TextTask`.
      labels: the classes of your own data, or the types of entities; None to take them from the training file.
      class_weights: the class weights of your own data; see `TextTask`.
      delimiter: what separates the cells of your own tables; see `tables.read_table`.
      document_context: whether the input of a tagged sentence contains other sentences of its document.
      dev_fraction: the share of the training file that becomes the dev set, for data without one; 0 for none.
      selection_metric: the score that models are chosen by; None for the task's own.
    """

    task_name: str
    data_dir: str | None
    train_file: Source | None = None
    dev_file: Source | None = None
    test_file: Source | None = None
    on_bad_row: str = "error"
    xnli_language: str = "zh"
    columns: Columns = dataclasses.field(default_factory=Columns)
    problem: str = "classification"
    labels: Sequence[str] | None = None
    class_weights: str = ""
    delimiter: str = tables.AUTO
    document_context: bool = True
    dev_fraction: float = 0.0
    selection_metric: str | None = None

    def build_task(self, output_dir: str, do_train: bool, feature_based: FeatureBased | None = None) -> ReportingTask:
        """Returns the task.

        Args:
          output_dir: the folder of the run; without training, the classes are read from it.
          do_train: whether the model is trained.
          feature_based: the settings of feature-based tagging; None to fine-tune.

        Raises:
          InputError: if there is no such task, its files are not given, or the task does not have one of the settings.
        """
        task = self._build(output_dir, do_train, feature_based)
        if isinstance(self.test_file, str):  # predictions of another file must not replace those of the first
            task.output_names = {"test": os.path.splitext(os.path.basename(self.test_file))[0]}
        if self.dev_fraction:
            if self.dev_file:
                raise InputError("--dev_fraction: --dev_file is given too. Give one of them.")
            task.examples = dev_split.with_held_out_dev(
                task.examples, self.dev_fraction, has_classes=self.problem != "regression"
            )
        if self.selection_metric:
            if self.selection_metric not in task.metric_names:
                scores = ", ".join(task.metric_names)
                raise InputError(f"--selection_metric: {task.name} has no {self.selection_metric}. Use {scores}.")
            task.selection_metric = self.selection_metric
        return task

    def _build(self, output_dir: str, do_train: bool, feature_based: FeatureBased | None) -> ReportingTask:
        name = names.check(self.task_name)
        self._check_settings(name)
        if feature_based and name != TAGGING:
            raise InputError(f"--feature_layers: not used by --task_name={name}, only by {TAGGING}. Omit it.")
        if name in DEFINITIONS:
            if not self.data_dir:
                raise InputError("--data_dir is needed. Name the folder of the task's files.")
            return GlueTask(name, self.data_dir, self.on_bad_row, self.xnli_language)
        recorded = None if do_train else run_directory.recorded_labels(output_dir)
        if self.labels and recorded and list(self.labels) != recorded:
            raise InputError(f"--labels: the run in {output_dir} was trained with {', '.join(recorded)}. Omit them.")
        if self.labels and len(set(self.labels)) < len(self.labels):
            raise InputError(f"--labels: one occurs twice in {', '.join(self.labels)}. Remove it.")
        labels = self.labels or recorded
        if name == TEXT:
            return TextTask(
                self._paths(text.FILE_NAMES),
                self.columns,
                problem=self.problem,
                labels=labels,
                class_weights=self.class_weights if do_train else "",  # they are used in training only
                on_bad_row=self.on_bad_row,
                delimiter=self.delimiter,
            )
        if name == TAGGING:
            paths, options = self._paths(task.FILE_NAMES), (labels, self.document_context, self.on_bad_row)
            return FeatureTaggingTask(paths, feature_based, *options) if feature_based else TaggingTask(paths, *options)
        return MultipleChoiceTask(
            name, self._paths(multiple_choice.FILE_NAMES[name]), self.on_bad_row, delimiter=self.delimiter
        )

    def _check_settings(self, name: str) -> None:
        """Raises an InputError if a setting is given that this task does not have."""
        defaults = DataConfig(self.task_name, self.data_dir)
        for setting, tasks in _TASKS_OF_SETTINGS.items():
            if name not in tasks and getattr(self, setting) != getattr(defaults, setting):
                flag = "text_column" if setting == "columns" else setting
                raise InputError(f"--{flag}: not used by --task_name={name}, only by {', '.join(tasks)}. Omit it.")

    def _paths(self, names: dict[str, tuple[str, ...]]) -> dict[str, Source]:
        """Returns the file of each split: the given file, or else the first one of the names that is in the folder.

        If the folder has none of a split's names, the result is the path with the first name. Splits are missing in the
        result if neither their file nor the folder is given.

        Raises:
          InputError: if neither a folder nor a file is given, or a given file is missing or empty.
        """
        given = {"train": self.train_file, "dev": self.dev_file, "test": self.test_file}
        if not self.data_dir and not any(given.values()):
            raise InputError("--data_dir is needed, or --train_file, --dev_file and --test_file. Name your files.")
        paths: dict[str, Source] = {}
        for split, candidates in names.items():
            if source := given[split]:
                paths[split] = files.require_file(source, f"--{split}_file") if isinstance(source, str) else source
            elif self.data_dir:
                in_folder = [os.path.join(self.data_dir, name) for name in candidates]
                paths[split] = next(filter(files.exists, in_folder), in_folder[0])
        return paths


_EXPORTABLES: Mapping[str, Callable[[FinishedRun], Exportable]] = {
    **dict.fromkeys(DEFINITIONS, graph_classifier.exportable_glue),
    **dict.fromkeys(multiple_choice.FILE_NAMES, graph_classifier.exportable_chooser),
    TEXT: graph_classifier.exportable_text,
    TAGGING: graph_tagger.exportable,
    SquadTask.name: graph_answerer.exportable,
}


def exportable(run: FinishedRun) -> Exportable:
    """Returns the exportable model of a finished run.

    Raises:
      InputError: if the run's task is unknown, or the model can't be read or converted.
    """
    name = run.settings["task"]
    if name not in _EXPORTABLES:
        names = ", ".join(_EXPORTABLES)
        raise InputError(f"--model_dir: {run.folder}/run.json names the task {name!r}, but one of {names} is expected.")
    return _EXPORTABLES[name](run)
