"""All of GLUE at once: the row of the paper's Table 1, and the file that the GLUE server takes."""

import io
import os
import zipfile
from collections.abc import Mapping, Sequence

import numpy as np

from bert_tf.finetuning import workflow
from bert_tf.finetuning.run import FinetuningRun
from bert_tf.finetuning.task import ModelOutputs
from bert_tf.finetuning.workflow import WorkflowConfig
from bert_tf.runtime import files, reporting
from bert_tf.runtime.files import InputError
from bert_tf.runtime.program import say
from bert_tf.tasks.glue import DEFINITIONS, GlueTask

# The columns of the paper's Table 1: task, dev split, name, score.
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
# What the server calls the predictions of each task and split.
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
# Scores of STS-B lie between these.
_SIMILARITIES = (0.0, 5.0)

# The eight tasks of Table 1, which --task_name=all trains. WNLI is left out there, and only predicted.
TRAINED_TASKS = tuple(dict.fromkeys(task for task, *_ in TABLE_1))


def task_folder(root: str | None, name: str) -> str:
    """Where a task's files are in GLUE's zip as it unpacks.

    Raises:
      InputError: if there is no root.
    """
    if not root:
        raise InputError("--data_dir is needed, GLUE's root folder, but it is not given.")
    return os.path.join(root, DEFINITIONS[name.lower()].folder)


def carry_out(run: FinetuningRun, tasks: Sequence[GlueTask], config: WorkflowConfig, data_dir: str) -> None:
    """Fine-tunes several tasks, each in its own folder, and writes what they make together.

    glue_results.json has the row of Table 1; glue_submission.zip the predictions.

    Args:
      run: gives what the tasks have in common, and the folder.
      tasks: which.
      config: for each of them.
      data_dir: GLUE's root folder.
    """
    output_dir = run.training_config.output_dir
    submission = majority_predictions(GlueTask("wnli", task_folder(data_dir, "wnli"))) if config.do_predict else {}
    runs = [run.with_task(task, task_folder(output_dir, task.name)) for task in tasks]
    for each in runs:
        workflow.prepare(each, config)
    results: dict[str, Mapping[str, Mapping[str, float]]] = {}
    for each in runs:
        say(f"***** {each.task.name} *****")
        done = workflow.carry_out(each, config)
        results[each.task.name] = done["eval"]
        if each.task.name != "wnli":
            submission |= server_predictions(each.task, done["predict"])
    if config.do_eval:
        row = table_1_row(results)
        say(reporting.table([row]))
        files.write_json(os.path.join(output_dir, "glue_results.json"), {"table_1": row, "dev": results})
    if config.do_predict:
        write_submission(os.path.join(output_dir, "glue_submission.zip"), submission)


def table_1_row(results: Mapping[str, Mapping[str, Mapping[str, float]]]) -> dict[str, float]:
    """The paper's Table 1 on the dev sets, times 100.

    F1 for QQP and MRPC, Spearman correlation for STS-B, Matthews correlation for CoLA, accuracy for the others; the
    average is over all columns, MNLI's two apart and WNLI left out, as in the paper.

    Args:
      results: task -> split -> what eval_results.txt has.
    """
    row = {
        column: round(100 * results[task][split][score], 1)
        for task, split, column, score in TABLE_1
        if split in results.get(task, {})
    }
    exact = [100 * results[task][split][score] for task, split, column, score in TABLE_1 if column in row]
    return row | ({"Average": round(float(np.mean(exact)), 1)} if exact else {})


def majority_predictions(wnli: GlueTask) -> dict[str, list[tuple[str, str]]]:
    """WNLI's most frequent class in training for every row, which is what the paper submitted; {} without WNLI."""
    if not files.exists(wnli.path("train")):
        return {}
    labels = [example.label for example in wnli.examples("train")]
    majority = max(sorted(set(labels)), key=labels.count)
    return {SUBMISSION["wnli", "test"]: [(index, majority) for index in wnli.test_indices("test")]}


def server_predictions(task: GlueTask, outputs: Mapping[str, ModelOutputs]) -> dict[str, list[tuple[str, str]]]:
    """A task's predictions as the server wants them: file -> index and label, or score, of each row."""
    found = {}
    for split, values in outputs.items():
        if task.labels is None:
            predictions = [f"{score:.3f}" for score in np.clip(task.predictions(values), *_SIMILARITIES)]
        else:
            predictions = [task.labels[number] for number in task.predictions(values)]
        if (task.name, split) in SUBMISSION:
            found[SUBMISSION[task.name, split]] = list(zip(task.test_indices(split), predictions, strict=True))
    return found


def write_submission(path: str, predictions: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Writes the zip, and says which of the server's files are not in it.

    Args:
      path: the file.
      predictions: file -> index and prediction of each row.
    """
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, rows in predictions.items():
            lines = ["index\tprediction", *(f"{index}\t{prediction}" for index, prediction in rows)]
            archive.writestr(name, "\n".join(lines) + "\n")
    with files.replacing(path, "wb") as writer:
        writer.write(packed.getvalue())
    missing = [name for name in SUBMISSION.values() if name not in predictions]
    say(f"Wrote {path}." + (f" The server also wants {', '.join(missing)}." if missing else ""))


def parse_names(task_name: str) -> list[str]:
    """The tasks that a name, "name,name..." or "all" stands for.

    Raises:
      InputError: if one of several is not GLUE's.
    """
    if task_name.lower() == "all":
        return list(TRAINED_TASKS)
    names = [name.strip().lower() for name in task_name.split(",")]
    for name in names if len(names) > 1 else ():
        if name not in {task for task, _ in SUBMISSION}:
            raise InputError(f"--task_name: {name!r} can't be one of several; the tasks of GLUE can.")
    return names
