import zipfile

import numpy as np
import pytest

from bert_tf.runtime.files import InputError
from bert_tf.tasks import glue_benchmark, multiple_choice, names
from bert_tf.tasks.glue import DEFINITIONS, GlueTask
from bert_tf.tasks.tagging.task import TaggingTask


def test_names_of_tasks():
    assert names.parse("MRPC") == ["mrpc"]
    assert names.parse("CoLA, WNLI") == ["cola", "wnli"]
    everything = names.parse("all")
    assert len(everything) == 8
    assert "wnli" not in everything
    with pytest.raises(InputError, match="'xnli' can't be combined with other tasks"):
        names.parse("cola,xnli")
    with pytest.raises(InputError, match="--task_name is 'colla', but one of cola, "):
        names.parse("colla,wnli")


def test_every_name_is_a_task():
    assert {*DEFINITIONS, *multiple_choice.FILE_NAMES, names.CUSTOM, TaggingTask.name} == set(names.TASK_NAMES)
    assert {task for task, _ in glue_benchmark.SUBMISSION} == set(names.GLUE_TASKS)
    assert tuple(dict.fromkeys(task for task, *_ in glue_benchmark.TABLE_1)) == names.TABLE_1_TASKS


def test_the_average_is_that_of_the_paper():
    # BERT-base in Table 1, test sets.
    scores = {
        "mnli": {"dev_matched": {"eval_accuracy": 0.846}, "dev_mismatched": {"eval_accuracy": 0.834}},
        "qqp": {"dev": {"eval_f1": 0.712, "eval_accuracy": 0.892}},
        "qnli": {"dev": {"eval_accuracy": 0.905}},
        "sst-2": {"dev": {"eval_accuracy": 0.935}},
        "cola": {"dev": {"eval_matthews_correlation": 0.521, "eval_accuracy": 0.8}},
        "sts-b": {"dev": {"eval_spearman": 0.858, "eval_pearson": 0.9}},
        "mrpc": {"dev": {"eval_f1": 0.889, "eval_accuracy": 0.848}},
        "rte": {"dev": {"eval_accuracy": 0.664}},
        "wnli": {"dev": {"eval_accuracy": 0.563}},
    }
    row = glue_benchmark.table_1_row(scores)
    assert list(row) == ["MNLI-m", "MNLI-mm", "QQP", "QNLI", "SST-2", "CoLA", "STS-B", "MRPC", "RTE", "Average"]
    assert row["Average"] == 79.6
    assert glue_benchmark.table_1_row({"rte": scores["rte"]}) == {"RTE": 66.4, "Average": 66.4}
    assert glue_benchmark.table_1_row({}) == {}


def test_predictions_have_the_server_s_format(write, tmp_path):
    task = GlueTask("rte", write("RTE/test.tsv", "index\tsentence1\tsentence2\n7\ta\tb\n9\tc\t\n").rpartition("/")[0])
    found = glue_benchmark.server_predictions(task, {"test": {"logits": np.array([[0.0, 1.0], [3.0, 1.0]])}})
    assert found == {"RTE.tsv": [("7", "not_entailment"), ("9", "entailment")]}

    folder = write("STS-B/test.tsv", "index\tsentence1\tsentence2\n0\ta\tb\n1\tc\td\n").rpartition("/")[0]
    found |= glue_benchmark.server_predictions(GlueTask("sts-b", folder), {"test": {"score": np.array([5.2, 1.23456])}})
    assert found["STS-B.tsv"] == [("0", "5.000"), ("1", "1.235")]

    columns = "index\tsentence1\tsentence2"
    write("WNLI/train.tsv", f"{columns}\tlabel\n0\ta\tb\t0\n1\ta\tb\t1\n2\ta\tb\t0\n")
    folder = write("WNLI/test.tsv", f"{columns}\n0\ta\tb\n1\tc\td\n").rpartition("/")[0]
    found |= glue_benchmark.majority_predictions(GlueTask("wnli", folder))

    glue_benchmark.write_submission(str(tmp_path / "glue.zip"), found)
    with zipfile.ZipFile(tmp_path / "glue.zip") as archive:
        assert sorted(archive.namelist()) == ["RTE.tsv", "STS-B.tsv", "WNLI.tsv"]
        assert archive.read("WNLI.tsv").decode() == "index\tprediction\n0\t0\n1\t0\n"


def test_incomplete_rows_of_a_test_set_are_predicted_too(write):
    text = "id\tquestion1\tquestion2\n0\ta\tb\n1\tc\n2\t\td\n"
    task = GlueTask("qqp", write("QQP/test.tsv", text).rpartition("/")[0], on_bad_row="skip")
    assert [(e.text_a, e.text_b) for e in task.examples("test")] == [("a", "b"), ("c", ""), ("", "d")]
    assert task.test_indices("test") == ["0", "1", "2"]


def test_mnli_has_two_dev_sets_and_the_diagnostic_set(write):
    header = "index\tsentence1\tsentence2"
    for name in ("dev_matched", "dev_mismatched", "test_matched", "test_mismatched"):
        folder = write(f"MNLI/{name}.tsv", f"{header}\n0\ta\tb\n").rpartition("/")[0]
    write("diagnostic/diagnostic.tsv", f"{header}\n0\ta\tb\n")
    task = GlueTask("mnli", folder)
    assert task.dev_splits == ["dev_matched", "dev_mismatched"]
    assert [glue_benchmark.SUBMISSION["mnli", split] for split in task.test_splits] == [
        *("MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv")
    ]
