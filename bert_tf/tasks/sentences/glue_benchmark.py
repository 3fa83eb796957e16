"""Fine-tunes several GLUE tasks in one run. Writes a row of the paper's Table 1 and the file for the GLUE server."""

import io
import os
import zipfile
from collections.abc import Mapping, Sequence

import numpy as np

from bert_tf.config import BertConfig
from bert_tf.finetuning.finetune import finetune, prepare
from bert_tf.finetuning.finetuning_config import FinetuningConfig
from bert_tf.finetuning.run import FinetuningRun
from bert_tf.finetuning.task import ModelOutputs
from bert_tf.runtime import dry_run, files, reporting
from bert_tf.runtime.files import InputError
from bert_tf.runtime.messages import say
from bert_tf.tasks import registry
from bert_tf.tasks.data_config import DataConfig
from bert_tf.tasks.sentences.glue import DEFINITIONS, GlueTask
from bert_tf.text import Tokenizer

# The columns of the paper's Table 1: task, dev split, column name, score.
TABLE_1 = (
    ("mnli", "dev_matched", "MNLI-m", "eval_accuracy"),
    ("mnli", "dev_mismatched", "MNLI-mm", "eval_accuracy"),
    ("qqp", "dev", "QQP", "eval_f1"),
    ("qnli", "dev", "QNLI", "eval_accuracy"),
    ("sst-2", "dev", "SST-2", "eval_accuracy"),
    ("cola", "dev", "CoLA", "eval_matthews_correlation"),
    ("sts-b", "dev", "STS-B", "eval_spearman"),
    ("mrpc", "dev", "MRPC", "eval_f1"),
    ("rte", "dev", "RTE", "eval_accuracy"),
)
# Maps tasks and splits to the file names that the GLUE server requires.
SUBMISSION = {
    ("cola", "test"): "CoLA.tsv",
    ("sst-2", "test"): "SST-2.tsv",
    ("mrpc", "test"): "MRPC.tsv",
    ("sts-b", "test"): "STS-B.tsv",
    ("qqp", "test"): "QQP.tsv",
    ("mnli", "test"): "MNLI-m.tsv",
    ("mnli", "test_mismatched"): "MNLI-mm.tsv",
    ("qnli", "test"): "QNLI.tsv",
    ("rte", "test"): "RTE.tsv",
    ("wnli", "test"): "WNLI.tsv",
    ("mnli", "test_diagnostic"): "AX.tsv",
}
# The range of STS-B's scores.
_SIMILARITY_RANGE = (0.0, 5.0)


def task_directory(root: str | None, name: str) -> str:
    """Returns a task's directory in the unpacked zip file of GLUE.

    Raises:
      InputError: if the root directory is not given.
    """
    if not root:
        raise InputError("--data_dir is required. Pass GLUE's root directory.")
    return os.path.join(root, DEFINITIONS[name.lower()].directory)


def export_directories(names: Sequence[str], output_dir: str, export_dir: str) -> list[tuple[str, str]]:
    """Returns the directories of each task's model and of its export. Several tasks have subdirectories."""
    if len(names) == 1:
        return [(output_dir, export_dir)]
    return [(task_directory(output_dir, name), task_directory(export_dir, name)) for name in names]


def finetune_tasks(
    names: Sequence[str], data: DataConfig, config: FinetuningConfig, model: tuple[BertConfig, Tokenizer]
) -> None:
    """Fine-tunes several tasks, each in its own directory, and writes results of all tasks.

    glue_results.json contains the row of Table 1, and glue_submission.zip contains the predictions.

    Args:
      names: the tasks.
      data: the settings of the data, with GLUE's root directory.
      config: the settings that all tasks share, with the output directory.
      model: the encoder's config and the tokenizer.
    """
    output_dir, root = config.training.output_dir, data.data_dir
    directories = [task_directory(root, name) for name in names]
    tasks = [
        registry.build_task(data.replace(task_name=name, data_dir=directory), output_dir, config.do_train)
        for name, directory in zip(names, directories, strict=True)
    ]
    majority = majority_predictions(GlueTask("wnli", task_directory(root, "wnli"))) if config.do_predict else {}
    runs = [FinetuningRun(task, config.in_directory(task_directory(output_dir, task.name)), model) for task in tasks]
    for run in runs:  # tokenizer processes can be started only before TensorFlow trains
        prepare(run)
    results: dict[str, Mapping[str, Mapping[str, float]]] = {}
    submission: dict[str, Sequence[tuple[str, str]]] = {}
    for task, run in zip(tasks, runs, strict=True):
        say(f"***** {task.name} *****")
        with dry_run.step():
            outcome = finetune(task, run.settings, run=run)
            if outcome["eval"]:
                results[task.name] = outcome["eval"]
            if task.name != "wnli":
                submission |= server_predictions(task, outcome["predict"])
    if config.do_train:
        dry_run.end()
    if results:
        row = table_1_row(results)
        say(reporting.table([row]))
        files.write_json(os.path.join(output_dir, "glue_results.json"), {"table_1": row, "dev": results})
    if submission:
        write_submission(os.path.join(output_dir, "glue_submission.zip"), majority | submission)


def table_1_row(results: Mapping[str, Mapping[str, Mapping[str, float]]]) -> dict[str, float]:
    """Returns the row of the paper's Table 1 for the dev sets, multiplied by 100.

    The scores are F1 for QQP and MRPC, Spearman correlation for STS-B, Matthews correlation for CoLA, and accuracy for
    other tasks. As in the paper, the average is over all columns. MNLI has two columns; WNLI has none.

    Args:
      results: maps tasks to splits to the results in eval_results.txt.
    """
    row = {
        column: round(100 * results[task][split][score], 1)
        for task, split, column, score in TABLE_1
        if split in results.get(task, {})
    }
    exact = [100 * results[task][split][score] for task, split, column, score in TABLE_1 if column in row]
    return row | ({"Average": round(float(np.mean(exact)), 1)} if exact else {})


def majority_predictions(wnli: GlueTask) -> dict[str, list[tuple[str, str]]]:
    """Predicts the most frequent training class of WNLI for every test row, like the paper.

    Returns an empty dict if there are no WNLI files.
    """
    if not files.exists(wnli.reader.sources["train"]):
        return {}
    labels = [example.label for example in wnli.split("train")]
    majority = max(sorted(set(labels)), key=labels.count)
    return {SUBMISSION["wnli", "test"]: [(index, majority) for index in wnli.reader.test_indices("test")]}


def server_predictions(task: GlueTask, outputs: Mapping[str, ModelOutputs]) -> dict[str, list[tuple[str, str]]]:
    """Returns predictions in the format of the server: maps file names to the index and label or score of each row."""
    submission = {}
    for split, values in outputs.items():
        if task.labels is None:
            predictions = [f"{score:.3f}" for score in np.clip(task.predictions(values), *_SIMILARITY_RANGE)]
        else:
            predictions = [task.labels[number] for number in task.predictions(values)]
        if (task.name, split) in SUBMISSION:
            submission[SUBMISSION[task.name, split]] = list(
                zip(task.reader.test_indices(split), predictions, strict=True)
            )
    return submission


def write_submission(path: str, predictions: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Writes the zip file, and reports required files that it does not contain.

    Args:
      path: the zip file.
      predictions: maps files to the index and prediction of each row.
    """
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, rows in predictions.items():
            lines = ["index\tprediction", *(f"{index}\t{prediction}" for index, prediction in rows)]
            archive.writestr(name, "\n".join(lines) + "\n")
    with files.replacing(path, "wb") as writer:
        writer.write(packed.getvalue())
    missing = [name for name in SUBMISSION.values() if name not in predictions]
    say(f"Wrote {path}." + (f" The server also needs {', '.join(missing)}." if missing else ""))
