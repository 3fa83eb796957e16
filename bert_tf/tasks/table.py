"""Which names stand for which tasks, and what is exported of each."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from bert_tf.checkpoints import run_directory
from bert_tf.finetuning.workflow import ReportingTask
from bert_tf.runtime.files import InputError
from bert_tf.serving.finished_run import Exportable, FinishedRun
from bert_tf.tasks import custom, multiple_choice, served, tables
from bert_tf.tasks.custom import Columns, CustomTask
from bert_tf.tasks.glue import DEFINITIONS, GlueTask
from bert_tf.tasks.multiple_choice import MultipleChoiceTask
from bert_tf.tasks.squad import served as squad_served
from bert_tf.tasks.squad.task import SquadTask
from bert_tf.tasks.tagging import export as tagging_export
from bert_tf.tasks.tagging import task
from bert_tf.tasks.tagging.by_features import FeatureBased, FeatureTaggingTask
from bert_tf.tasks.tagging.task import TaggingTask

CUSTOM, TAGGING = "custom", "ner"
# Every task has a name of its own; "all", and several names with commas, stand for more than one of GLUE's.
TASK_NAMES = (*DEFINITIONS, *multiple_choice.FILE_NAMES, CUSTOM, TAGGING)
# Settings of `DataConfig` that not every task has, with the tasks that have them. GLUE's files have fixed names.
_TASKS_OF_SETTINGS = {
    **dict.fromkeys(("train_file", "dev_file", "test_file"), (*multiple_choice.FILE_NAMES, CUSTOM, TAGGING)),
    "xnli_language": ("xnli",),
    **dict.fromkeys(("columns", "problem", "class_weights"), (CUSTOM,)),
    "labels": (CUSTOM, TAGGING),
    "document_context": (TAGGING,),
}


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Which task, and where its rows are.

    Attributes:
      task_name: one of `TASK_NAMES`.
      data_dir: the folder of the task's files; None where they are all given.
      train_file: instead of the one in the folder; so are the next two. Not for GLUE, whose files have fixed names.
      dev_file: see above.
      test_file: see above.
      on_bad_row: "error" or "skip".
      xnli_language: of XNLI.
      columns: of your own data.
      problem: of your own data.
      labels: of your own data, or the types of entities; None to learn them.
      class_weights: of your own data.
      document_context: whether tagged sentences are seen within their documents.
    """

    task_name: str
    data_dir: str | None
    train_file: str | None = None
    dev_file: str | None = None
    test_file: str | None = None
    on_bad_row: str = "error"
    xnli_language: str = "zh"
    columns: Columns = dataclasses.field(default_factory=Columns)
    problem: str = "classification"
    labels: Sequence[str] | None = None
    class_weights: str = ""
    document_context: bool = True

    def build_task(self, output_dir: str, do_train: bool, feature_based: FeatureBased | None = None) -> ReportingTask:
        """The task.

        Args:
          output_dir: of the run; where it doesn't train, the classes are those it was trained with.
          do_train: whether it trains.
          feature_based: how to tag by features; None to fine-tune.

        Raises:
          InputError: if there is no such task, its files are not named, or it has no use for a setting.
        """
        name = self.task_name.lower()
        if name not in TASK_NAMES:
            raise InputError(f"--task_name is {self.task_name!r}, but one of {', '.join(TASK_NAMES)} is expected.")
        self._check_settings(name)
        if feature_based and name != TAGGING:
            raise InputError(f"--feature_layers: only --task_name={TAGGING} goes by features, not {name}.")
        if name in DEFINITIONS:
            if not self.data_dir:
                raise InputError("--data_dir is needed, but it is not given.")
            return GlueTask(name, self.data_dir, self.on_bad_row, self.xnli_language)
        recorded = None if do_train else run_directory.recorded_labels(output_dir)
        if self.labels and recorded and list(self.labels) != recorded:
            raise InputError(
                f"--labels are {', '.join(self.labels)}, but the run in {output_dir} was trained with "
                f"{', '.join(recorded)}. Leave them out: they are known."
            )
        labels = self.labels or recorded
        if name == CUSTOM:
            weights = self.class_weights if do_train else ""  # they are of no account but in training
            paths = self._paths(custom.FILE_NAMES)
            return CustomTask(paths, self.columns, self.problem, labels, weights, self.on_bad_row)
        if name == TAGGING:
            paths, how = self._paths(task.FILE_NAMES), (labels, self.document_context, self.on_bad_row)
            return FeatureTaggingTask(paths, feature_based, *how) if feature_based else TaggingTask(paths, *how)
        return MultipleChoiceTask(name, self._paths(multiple_choice.FILE_NAMES[name]), self.on_bad_row)

    def _check_settings(self, name: str) -> None:
        """Raises an InputError for a setting that is given, but is not for this task."""
        not_given = DataConfig(self.task_name, self.data_dir)
        for setting, tasks in _TASKS_OF_SETTINGS.items():
            if name not in tasks and getattr(self, setting) != getattr(not_given, setting):
                flag = "text_column and the other columns" if setting == "columns" else setting
                raise InputError(f"--{flag}: --task_name={name} has no use for it, only {', '.join(tasks)}.")

    def _paths(self, names: dict[str, tuple[str, ...]]) -> dict[str, str]:
        given = {"train": self.train_file, "dev": self.dev_file, "test": self.test_file}
        return tables.find_splits(self.data_dir, names, given)


_EXPORTABLES: Mapping[str, Callable[[FinishedRun], Exportable]] = {
    **dict.fromkeys(DEFINITIONS, served.exportable_glue),
    **dict.fromkeys(multiple_choice.FILE_NAMES, served.exportable_chooser),
    CUSTOM: served.exportable_custom,
    TAGGING: tagging_export.exportable,
    SquadTask.name: squad_served.exportable,
}


def exportable(run: FinishedRun) -> Exportable:
    """What is exported of a finished run, as its task says.

    Raises:
      InputError: if nobody knows its task, or a part of it can't be found or converted.
    """
    name = run.settings["task"]
    if name not in _EXPORTABLES:
        known = ", ".join(_EXPORTABLES)
        raise InputError(f"--model_dir: {run.folder}/run.json names the task {name!r}, but one of {known} is expected.")
    return _EXPORTABLES[name](run)
