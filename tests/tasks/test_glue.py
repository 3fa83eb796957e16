import dataclasses

import pytest

from bert_tf.runtime.files import InputError
from bert_tf.tasks.glue import DEFINITIONS, GlueTask
from tests.conftest import GOLDEN, data_path, golden_json


@pytest.mark.golden
def test_rows_are_those_of_the_released_processors():
    for case in golden_json("classifier/processors/expected.json"):
        if isinstance(case["examples"], str):  # the release has no test set of XNLI
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


def test_every_task_of_glue_is_there():
    assert {d.folder for d in DEFINITIONS.values()} == {
        *("CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE", "WNLI", "XNLI")
    }
    with pytest.raises(InputError, match="--task_name is 'sst'"):
        GlueTask("sst", "")


def rows(write, task, name, text, **options):
    path = write(f"{task}/{name}", text)
    return GlueTask(task, path.rpartition("/")[0], **options)


def test_quotes_carriage_returns_and_byte_order_marks(write):
    text = '\ufeffsentence\tlabel\r\nsay "hi\t1\r\na \u2028 b\t0\r\n'
    task = rows(write, "SST-2", "train.tsv", text)
    assert [(e.text_a, e.label) for e in task.examples("train")] == [('say "hi', "1"), ("a \u2028 b", "0")]


def test_incomplete_rows_of_published_qqp_are_skipped_and_counted(write, capsys):
    text = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\ta\tb\t1\n4\t5\t6\tcut\n"
    task = rows(write, "QQP", "train.tsv", text)
    assert [e.text_b for e in task.examples("train")] == ["b"]
    assert "1 rows skipped (columns are missing in the published file)" in capsys.readouterr().err


def test_rows_without_gold_label_are_skipped_and_counted(write, capsys):
    task = rows(write, "RTE", "dev.tsv", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n1\ta\tb\t-\n")
    assert len(task.examples("dev")) == 1
    assert "1 rows skipped (no gold label)" in capsys.readouterr().err


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
    assert "evaluating on MRPC's labelled test pairs" in capsys.readouterr().err
    write("MRPC/dev_ids.tsv", "13\t14\n")
    assert [e.text_a for e in task.examples("dev")] == ["c"]


def test_cola_has_a_header_only_in_its_test_set(write):
    write("CoLA/test.tsv", "index\tsentence\n0\tc d\n")
    task = rows(write, "CoLA", "train.tsv", 'gj04\t1\t\ta b\nbc01\t0\t*\tb "c\n')
    assert [(e.text_a, e.label) for e in task.examples("train")] == [("a b", "1"), ('b "c', "0")]
    assert [e.text_a for e in task.examples("test")] == ["c d"]


def test_regression_rows(write):
    header = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
    task = rows(write, "STS-B", "dev.tsv", header + "0\tg\tf\ty\to\ts\ts\ta\tb\t4.75\n")
    assert task.labels is None
    assert task.examples("dev")[0].label == "4.75"
    bad = rows(write, "STS-B", "dev.tsv", header + "0\tg\tf\ty\to\ts\ts\ta\tb\thigh\n")
    with pytest.raises(InputError, match="line 2: the score 'high' is not a number"):
        bad.examples("dev")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sentence\tclass\na\t1\n", "line 1: the column 'label' is missing"),
        ("sentence\tlabel\na\t1\nb\t2\n", "line 3: the label '2' is unknown; '0', '1' are expected"),
        ("sentence\tlabel\na\t1\nb\n", "line 3: the row has 1 columns, but column label is needed"),
        ("sentence\tlabel\n", "has no rows"),
        ("", "is empty"),
        (b"sentence\tlabel\na\xff\t1\n", "line 2: byte 0xff is not UTF-8"),
    ],
)
def test_problems_of_files_are_reported_with_their_line(write, text, message):
    with pytest.raises(InputError, match=message):
        rows(write, "SST-2", "train.tsv", text).examples("train")


def test_a_missing_file_is_reported(tmp_path):
    with pytest.raises(InputError, match=r"--data_dir: there is no file .*train\.tsv"):
        GlueTask("RTE", str(tmp_path)).examples("train")


def test_bad_rows_are_skipped_and_counted_on_request(write, capsys):
    task = rows(write, "SST-2", "train.tsv", "sentence\tlabel\na\t1\nb\nc\t7\n", on_bad_row="skip")
    assert [e.text_a for e in task.examples("train")] == ["a"]
    assert "2 rows skipped (bad rows)" in capsys.readouterr().err
