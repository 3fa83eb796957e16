"""Exports a finished run or a pre-trained model as a SavedModel that takes raw strings, and loads exported models.

    python -m bert_tf.export --model_dir=runs/qnli --export_dir=exported/qnli

The SavedModel contains the tokenizer, the vocabulary and the labels, and needs only tensorflow and tensorflow-text. For
callers that pass ids, the directory also contains files with the vocabulary, the tokenizer settings and the labels. The
method `signatures` of the served model describes the inputs and outputs; see `graphs.classifier`,
`graphs.tags`, `graphs.answers` or, for a pre-trained model, `graphs.pretrained`.
"""

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from absl import flags

from bert_tf import program_flags
from bert_tf.runtime import dry_run, files, lazy_imports, path_checks, program
from bert_tf.runtime.errors import require_choice
from bert_tf.runtime.files import InputError
from bert_tf.runtime.messages import say
from bert_tf.runtime.storage.output_checks import is_unfinished
from bert_tf.serving.answering import Predictor
from bert_tf.serving.export_config import ENGINES, SERVING_DEFAULT, ExportConfig, check_no_bilstm

if TYPE_CHECKING:
    from bert_tf.finetuning.finetuning_config import FinetuningConfig
    from bert_tf.finetuning.task import Task
    from bert_tf.graphs.exportable import Exportable, FinishedRun
    from bert_tf.serving.saved_model import ExportedModel as ExportedModel
else:
    __getattr__, *_ = lazy_imports.when_used(__name__)


def load(directory: str | os.PathLike[str], signature: str = SERVING_DEFAULT, engine: str = ENGINES[0]) -> Predictor:
    """Loads an exported model.

    Examples:
      >>> from bert_tf import export
      >>> export.export_run("build/quickstart/authors", "exported/authors/1")
      >>> model = export.load("exported/authors/1")
      >>> model.inputs
      ['text']
      >>> model.predict([{"text": "The great whale was white."}])[0]["label"]
      'melville'

    Args:
      directory: the directory of the export.
      signature: the name of the signature to call.
      engine: "tensorflow" or "litert". LiteRT does not need TensorFlow. It runs models for texts, pairs or choices that
        were exported for LiteRT.

    Returns:
      An `ExportedModel`, or for LiteRT a `bert_tf.serving.lite_model.LiteModel`.

    Raises:
      InputError: if there is no such model, signature or engine.
    """
    directory = os.fspath(directory)
    require_choice("engine", engine, ENGINES)
    if is_unfinished(directory):
        raise InputError(f"{directory} is an incomplete export. Delete it and run the export again.")
    if engine == "litert":
        from bert_tf.serving.lite_model import LiteModel

        if signature != SERVING_DEFAULT:
            raise InputError(f"engine='litert' has no signature {signature!r}. Use engine='tensorflow'.")
        return LiteModel(directory)
    from bert_tf.serving.saved_model import ExportedModel

    return ExportedModel(directory, signature)


@dry_run.step()
def export_run(
    model_dir: str | os.PathLike[str], export_dir: str | os.PathLike[str], config: ExportConfig | None = None
) -> None:
    """Exports a finished run, or any pre-trained model that `bert_tf.load_model` can read.

    A dry run only checks that the model can be exported.

    Args:
      model_dir: the directory of the model, or a name that `bert_tf.load_model` accepts. If a run has several trials,
        the best trial is exported.
      export_dir: a directory that doesn't exist yet or is empty.
      config: the settings; None for the defaults.

    Raises:
      InputError: if there is no model in `model_dir`, or if `export_dir` is not empty.
    """
    config = config or ExportConfig()
    model_dir, export_dir = os.fspath(model_dir), os.fspath(export_dir)
    path_checks.check_new_directory(export_dir, "--export_dir")
    model = build(model_dir, config)
    with files.replacing_directory(export_dir) as directory:
        signatures = model.write(directory, config)
    say(f"Wrote {export_dir} with the signatures {', '.join(signatures)}.")


def check_can_export(config: "FinetuningConfig") -> None:
    """Checks before a run that its model can be exported.

    Raises:
      InputError: if the model has a BiLSTM.
    """
    from bert_tf.checkpoints import run_record

    recorded = run_record.recorded_bilstm(config.model.init_checkpoint)
    check_no_bilstm(bool(config.bilstm or recorded), "--do_export")


def build(model_dir: str, config: ExportConfig) -> "Exportable":
    """Returns the model that `export_run` writes.

    Raises:
      InputError: if there is no model in `model_dir`, its task is unknown, or it can't be converted.
    """
    from bert_tf.checkpoints import download, run_directory, run_record
    from bert_tf.graphs import heads, pretrained
    from bert_tf.graphs.exportable import FinishedRun
    from bert_tf.tasks import own_tasks
    from bert_tf.tasks.registry import TASKS

    model_dir = download.local_path(model_dir, "--model_dir")
    if not files.exists(model_dir):
        raise InputError(f"--model_dir: there is no directory {model_dir!r}. Check the path.")
    if "task" in run_record.recorded(run_directory.directory_of_model(model_dir)):
        run = FinishedRun.read(model_dir, config)
        name, functions = run.settings["task"], exportables()
        if own_task := own_tasks.find(name):
            return (own_task.export or heads.exportable)(run)
        if TASKS.get(name) not in functions:
            known = ", ".join(task for task in TASKS if TASKS[task] in functions)
            raise InputError(
                f"--model_dir: {run.directory}/run.json has the unknown task {name!r}. Known tasks: {known}. Export a "
                "task of your own with its program and --do_export."
            )
        return functions[TASKS[name]](run)
    return pretrained.exportable_encoder(model_dir, config)


def exportables() -> "Mapping[type[Task], Callable[[FinishedRun], Exportable]]":
    """Maps the classes of built-in tasks to functions that return the exportable model of a run."""
    from bert_tf.graphs import answers, classifier, pretrained, tags
    from bert_tf.tasks.sentences.glue import GlueTask
    from bert_tf.tasks.sentences.multiple_choice import MultipleChoiceTask
    from bert_tf.tasks.sentences.own_files import TextTask
    from bert_tf.tasks.sentences.similarity import SimilarityTask
    from bert_tf.tasks.squad.squad_task import SquadTask
    from bert_tf.tasks.tagging.tagging_task import TaggingTask

    return {
        GlueTask: classifier.exportable_classifier,
        TextTask: classifier.exportable_classifier,
        MultipleChoiceTask: classifier.exportable_chooser,
        SimilarityTask: lambda run: pretrained.exportable_encoder(run.directory, run.export_config),
        TaggingTask: tags.exportable_tagger,
        SquadTask: answers.exportable_predictor,
    }


def cli() -> None:
    """Runs the program. The flags are defined here, because a program that imports `load` may have the same flags."""
    model_dir = flags.DEFINE_string("model_dir", None, "Directory or name of a finished run or a pre-trained model.")
    max_seq_length = flags.DEFINE_integer(
        "max_seq_length",
        None,
        "Length at which sequences are truncated. Default: as in training, or a pre-trained model's maximum.",
    )
    null_threshold = flags.DEFINE_float(
        "null_score_diff_threshold",
        None,
        "SQuAD 2.0: threshold of the no-answer score minus the best score. Default: tuned, or 0.",
    )
    export_flags = program_flags.ExportFlags()

    def main() -> None:
        config = export_flags.config(
            max_seq_length=max_seq_length.value, null_score_diff_threshold=null_threshold.value
        )
        export_run(model_dir.value, export_flags.export_dir, config)

    program.run(main, required=["model_dir", "export_dir"])


if __name__ == "__main__":
    cli()
