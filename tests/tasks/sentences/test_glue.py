"""Tests GLUE's tasks, score table and submissions."""

import dataclasses
import zipfile

import numpy as np
import pytest

from bert_tf.tasks import data_config, task_names
from bert_tf.tasks.registry import TASKS
from bert_tf.tasks.sentences import glue_benchmark
from bert_tf.tasks.sentences.glue import DEFINITIONS, GlueTask
from tests.conftest import GOLDEN, assert_refused, data_path, golden_json

QQP = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
RTE = "index\tsentence1\tsentence2\tlabel"
STS_B = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore"


@pytest.mark.golden
def test_rows_are_those_of_the_released_processors():
    for case in golden_json("classifier/processors/expected.json"):
        if isinstance(case["examples"], str):  # the original code has no test set of XNLI
            continue
        task = GlueTask(case["processor"], str(GOLDEN / "classifier" / "processors" / case["processor"]))
        split = {"train": "train", "dev": task.dev_splits[0], "test": "test"}[case["split"]]
        assert [dataclasses.asdict(example) for example in task.examples(split)] == case["examples"]
        assert list(task.labels) == case["labels"]


@pytest.mark.parametrize("name", ["QNLI", "WNLI", "MNLI"])
def test_real_files(name):
    task = GlueTask(name, str(data_path(f"glue/{name}")))
    expected = {"QNLI": (4400, 1063, 500), "WNLI": (635, 71, 146), "MNLI": (6, 5, 5)}[name]
    assert tuple(len(task.examples(s)) for s in ("train", task.dev_splits[0], "test")) == expected
    assert task.dev_splits == (["dev_matched", "dev_mismatched"] if name == "MNLI" else ["dev"])


def rows(write, task, name, text, **options):
    path = write(f"{task}/{name}", text)
    return GlueTask(task, path.rpartition("/")[0], **options)


@pytest.mark.parametrize(
    ("task", "text", "options", "kept", "counted"),
    [
        ("QQP", f"{QQP}\n1\t2\t3\ta\tb\t1\n4\t5\t6\tcut\n", {}, ["a"], "1 rows skipped (columns are missing"),
        ("RTE", f"{RTE}\n0\ta\tb\tentailment\n1\ta\tb\t-\n", {}, ["a"], "1 rows skipped (no gold label)"),
        ("SST-2", "sentence\tlabel\na\t1\nb\nc\t7\n", {"on_bad_row": "skip"}, ["a"], "2 rows skipped (bad rows)"),
    ],
)
def test_rows_are_skipped_and_counted(write, capsys, task, text, options, kept, counted):
    assert [e.text_a for e in rows(write, task, "train.tsv", text, **options).examples("train")] == kept
    assert counted in capsys.readouterr().err


def test_mrpc_in_its_original_form(write):
    header = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    write("MRPC/mrpc_dev_ids.tsv", "11\t12\n")
    write("MRPC/msr_paraphrase_test.txt", header + "1\t21\t22\te\tf\n")
    task = rows(write, "MRPC", "msr_paraphrase_train.txt", header + "1\t11\t12\ta\tb\n0\t13\t14\tc\td\n")
    assert [e.text_a for e in task.examples("train")] == ["c"]
    assert [e.text_a for e in task.examples("dev")] == ["a"]
    assert [e.text_a for e in task.examples("test")] == ["e"]


def test_mrpc_without_the_list_of_dev_pairs_evaluates_on_its_test_pairs(write, capsys):
    header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    write("MRPC/msr_paraphrase_test.txt", header + "1\t21\t22\te\tf\n")
    task = rows(write, "MRPC", "msr_paraphrase_train.txt", header + "1\t11\t12\ta\tb\n0\t13\t14\tc\td\n")
    assert [e.text_a for e in task.examples("train")] == ["a", "c"]
    assert [(e.text_a, e.label) for e in task.examples("dev")] == [("e", "1")]
    assert "Using MRPC's labelled test pairs" in capsys.readouterr().err
    write("MRPC/dev_ids.tsv", "13\t14\n")
    assert [e.text_a for e in task.examples("dev")] == ["c"]


def test_cola_has_a_header_only_in_its_test_set(write):
    write("CoLA/test.tsv", "index\tsentence\n0\tc d\n")
    task = rows(write, "CoLA", "train.tsv", 'gj04\t1\t\ta \u2028 b\nbc01\t0\t*\tb "c\n')
    assert [(e.text_a, e.label) for e in task.examples("train")] == [("a \u2028 b", "1"), ('b "c', "0")]
    assert [e.text_a for e in task.examples("test")] == ["c d"]


@pytest.mark.parametrize(
    ("task", "text", "message"),
    [
        ("SST-2", "sentence\tclass\na\t1\n", "line 1: the column 'label'"),
        ("SST-2", "sentence\tlabel\na\t1\nb\t2\n", "line 3: the label '2' .* '0', '1'"),
        ("SST-2", "sentence\tlabel\na\t1\nb\n", "line 3: .* column 'label'"),
        ("SST-2", "sentence\tlabel\n", "there are no rows"),
        ("SST-2", b"sentence\tlabel\na\xff\t1\n", "line 2: byte 0xff"),
        ("STS-B", f"{STS_B}\n0\tg\tf\ty\to\ts\ts\ta\tb\thigh\n", "line 2: the score 'high'"),
    ],
)
def test_problems_of_files_are_reported_with_their_line(write, task, text, message):
    assert_refused(message, rows(write, task, "train.tsv", text).examples, "train")
    assert_refused(r"--data_dir: there is no file .*dev\.tsv", rows(write, task, "train.tsv", text).examples, "dev")


def test_regression_rows(write):
    task = rows(write, "STS-B", "dev.tsv", f"{STS_B}\n0\tg\tf\ty\to\ts\ts\ta\tb\t4.75\n")
    assert task.labels is None
    assert task.examples("dev")[0].label == "4.75"


def test_names_of_tasks():
    assert data_config.parse("MRPC") == ["mrpc"]
    assert data_config.parse("CoLA, WNLI") == ["cola", "wnli"]
    everything = data_config.parse("all")
    assert len(everything) == 8
    assert "wnli" not in everything
    assert_refused("'xnli' can't be combined", data_config.parse, "cola,xnli")
    assert_refused("--task_name is 'colla'", data_config.parse, "colla,wnli")


def test_every_name_is_a_task():
    names = ("CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE", "WNLI", "XNLI")
    assert {definition.directory for definition in DEFINITIONS.values()} == set(names)
    assert TASKS.keys() == {*task_names.TASK_NAMES, task_names.SQUAD}
    assert {task for task, _ in glue_benchmark.SUBMISSION} == set(task_names.GLUE_TASKS)
    assert tuple(dict.fromkeys(task for task, *_ in glue_benchmark.TABLE_1)) == task_names.TABLE_1_TASKS


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
    task = rows(write, "RTE", "test.tsv", "index\tsentence1\tsentence2\n7\ta\tb\n9\tc\t\n")
    found = glue_benchmark.server_predictions(task, {"test": {"logits": np.array([[0.0, 1.0], [3.0, 1.0]])}})
    assert found == {"RTE.tsv": [("7", "not_entailment"), ("9", "entailment")]}

    task = rows(write, "STS-B", "test.tsv", "index\tsentence1\tsentence2\n0\ta\tb\n1\tc\td\n")
    found |= glue_benchmark.server_predictions(task, {"test": {"score": np.array([5.2, 1.23456])}})
    assert found["STS-B.tsv"] == [("0", "5.000"), ("1", "1.235")]

    write("WNLI/train.tsv", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\t0\n1\ta\tb\t1\n2\ta\tb\t0\n")
    task = rows(write, "WNLI", "test.tsv", "index\tsentence1\tsentence2\n0\ta\tb\n1\tc\td\n")
    found |= glue_benchmark.majority_predictions(task)

    glue_benchmark.write_submission(str(tmp_path / "glue.zip"), found)
    with zipfile.ZipFile(tmp_path / "glue.zip") as archive:
        assert sorted(archive.namelist()) == ["RTE.tsv", "STS-B.tsv", "WNLI.tsv"]
        assert archive.read("WNLI.tsv").decode() == "index\tprediction\n0\t0\n1\t0\n"


def test_incomplete_rows_of_a_test_set_are_predicted_too(write):
    text = "id\tquestion1\tquestion2\n0\ta\tb\n1\tc\n2\t\td\n"
    task = GlueTask("qqp", write("QQP/test.tsv", text).rpartition("/")[0], on_bad_row="skip")
    assert [(e.text_a, e.text_b) for e in task.examples("test")] == [("a", "b"), ("c", ""), ("", "d")]
    assert task.reader.test_indices("test") == ["0", "1", "2"]


def test_mnli_has_two_dev_sets_and_the_diagnostic_set(write):
    header = "index\tsentence1\tsentence2"
    for name in ("dev_matched", "dev_mismatched", "test_matched", "test_mismatched"):
        directory = write(f"MNLI/{name}.tsv", f"{header}\n0\ta\tb\n").rpartition("/")[0]
    write("diagnostic/diagnostic.tsv", f"{header}\n0\ta\tb\n")
    task = GlueTask("mnli", directory)
    assert task.dev_splits == ["dev_matched", "dev_mismatched"]
    names = [glue_benchmark.SUBMISSION["mnli", split] for split in task.test_splits]
    assert names == ["MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv"]
