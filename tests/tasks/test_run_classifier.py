"""Runs the program like a user, on several unpacked GLUE tasks, and tests the selection of tasks."""

import json
import zipfile

import numpy as np
import pytest

from bert_tf.checkpoints import run_directory
from bert_tf.runtime.files import InputError
from bert_tf.sequences.text_packer import LongDocuments
from bert_tf.tasks.data_config import Columns, ConfidenceConfig, DataConfig, LossConfig
from bert_tf.tasks.registry import build_task
from bert_tf.tasks.sentences.multiple_choice import MultipleChoiceTask
from bert_tf.tasks.sentences.own_files import TextTask
from bert_tf.tasks.tagging.tagging_task import TaggingTask
from tests import programs
from tests.conftest import assert_refused

pytestmark = pytest.mark.plain
SURE = ConfidenceConfig(min_probability=0.5)


@pytest.fixture
def glue(write, tmp_path):
    """Returns a GLUE directory with two small tasks and WNLI."""
    rng = np.random.default_rng(0)
    text = [" ".join(rng.choice(list("abcdefgh"), rng.integers(2, 7))) for _ in range(24)]
    cola = [f"gj04\t{int('a' in x)}\t\t{x}\n" for x in text]
    write("glue/CoLA/train.tsv", "".join(cola[:16]))
    write("glue/CoLA/dev.tsv", "".join(cola[16:]))
    write("glue/CoLA/test.tsv", "index\tsentence\n" + "".join(f"{i}\t{x}\n" for i, x in enumerate(text[:5])))
    columns = "index\tsentence1\tsentence2"
    pairs = [f"{i}\t{x}\t{text[i - 1]}" for i, x in enumerate(text)]
    scored = [f"{pair}\t{i % 6}.0\n" for i, pair in enumerate(pairs)]
    write("glue/STS-B/train.tsv", f"{columns}\tscore\n" + "".join(scored[:16]))
    write("glue/STS-B/dev.tsv", f"{columns}\tscore\n" + "".join(scored[16:]))
    write("glue/STS-B/test.tsv", f"{columns}\n" + "".join(f"{pair}\n" for pair in pairs[:3]))
    write("glue/WNLI/train.tsv", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\t0\n")
    write("glue/WNLI/test.tsv", "index\tsentence1\tsentence2\n0\ta\tb\n1\ta\tb\n")
    return tmp_path / "glue"


@pytest.mark.eager
def test_several_tasks_of_glue(glue, tmp_path):
    config, vocab = programs.write_model_files(tmp_path)
    out = tmp_path / "out"
    command = ["run_classifier.py", "--task_name=CoLA,STS-B", f"--data_dir={glue}", f"--output_dir={out}"]
    command += [f"--bert_config_file={config}", f"--vocab_file={vocab}", "--train_batch_size=4", "--max_seq_length=16"]
    command += ["--do_train", "--do_eval", "--do_predict", "--num_train_epochs=1", "--log_steps=2"]
    command += ["--do_export", "--noexport_text", f"--export_dir={tmp_path / 'exported'}"]
    output = programs.run(*command)
    assert "Traceback" not in output
    results = json.loads((out / "glue_results.json").read_text())
    assert results["table_1"].keys() == {"CoLA", "STS-B", "Average"}
    assert results["dev"]["cola"]["dev"]["eval_matthews_correlation"] * 100 == pytest.approx(
        results["table_1"]["CoLA"], abs=0.06
    )
    with zipfile.ZipFile(out / "glue_submission.zip") as archive:
        assert sorted(archive.namelist()) == ["CoLA.tsv", "STS-B.tsv", "WNLI.tsv"]
        lines = archive.read("CoLA.tsv").decode().splitlines()
        assert lines[0] == "index\tprediction"
        assert len(lines) == 6
        assert {line.split("\t")[1] for line in lines[1:]} <= {"0", "1"}
        assert archive.read("WNLI.tsv").decode() == "index\tprediction\n0\t0\n1\t0\n"
    for name in ("CoLA", "STS-B"):
        assert (tmp_path / "exported" / name / "saved_model.pb").exists()
    assert "The server also needs SST-2.tsv" in output
    assert len((out / "CoLA" / "test_results.tsv").read_text().splitlines()) == 6
    assert (out / "STS-B" / "eval_results.txt").read_text().startswith("eval_loss = ")


def test_names_of_tasks(write, tmp_path):
    directory, out = str(tmp_path), str(tmp_path / "out")
    write("train.tsv", "text\tlabel\na\tx\nb\ty\n")
    write("train.txt", "a B-PER\n")
    write("test.jsonl", "{}")
    elsewhere = write("elsewhere.csv", "text,label\n")
    custom = build_task(DataConfig("text", directory, dev_file=elsewhere), out, do_train=True)
    assert isinstance(custom, TextTask)
    assert custom.output_names == {}
    for file, name in (("march.csv", "march"), ("dev.tsv", "test_dev")):
        named = build_task(DataConfig("text", directory, test_file=write(file, "text\na\n")), out, do_train=True)
        assert named.output_names == {"test": name}
    assert custom.sources == {"train": f"{directory}/train.tsv", "dev": elsewhere, "test": f"{directory}/test.jsonl"}
    with pytest.raises(InputError, match=r"train\.txt and .*train\.tsv both exist.*--train_file"):
        build_task(DataConfig("NER", directory), out, do_train=True)
    tags = DataConfig("NER", directory, train_file=f"{directory}/train.txt")
    assert isinstance(build_task(tags, out, do_train=True), TaggingTask)
    assert isinstance(build_task(DataConfig("swag", directory), out, do_train=True), MultipleChoiceTask)
    assert build_task(DataConfig("mnli", directory), out, do_train=True).name == "mnli"


def test_a_file_that_is_given_is_enough_to_read_it_and_others_are_missed_by_their_flags(write, tmp_path):
    for name, file, text in (
        ("text", "train.csv", "text,label\na,x\nb,y\n"),
        ("ner", "train.conll", "a B-x\n"),
        ("multiple_choice", "train.tsv", "prompt\tending0\tending1\tlabel\na\tb\tc\t1\n"),
    ):
        task = build_task(DataConfig(name, None, write(file, text)), str(tmp_path), do_train=True)
        assert len(task.examples("train")) >= 1
        assert_refused(r"there is no dev file.*--dev_file, or add one of dev", task.examples, "dev")
    only_test = DataConfig("text", None, test_file=write("test.csv", "text\na\n"))
    with pytest.raises(
        InputError, match=r"there is no train file.*--train_file, or add one of train.tsv, train.csv, train.jsonl"
    ):
        _ = build_task(only_test, str(tmp_path), do_train=False).labels
    tags = DataConfig("ner", None, test_file=write("test.conll", "a\n"), labels=["x"])
    assert build_task(tags, str(tmp_path), do_train=False).scheme == "iob2"


def test_classes_are_those_of_training_when_only_predicting(write, tmp_path):
    out = str(tmp_path / "out")
    write(f"out/{run_directory.LABELS_FILE}", '["b", "a"]')
    config = DataConfig("text", str(tmp_path), class_weights="balanced")
    assert build_task(config, out, do_train=False).labels == ("b", "a")
    assert build_task(DataConfig("ner", str(tmp_path)), out, do_train=False).labels == ("b", "a")
    with pytest.raises(InputError, match=r"--labels: .*out was trained with b, a"):
        build_task(DataConfig("text", str(tmp_path), labels=["a", "b"]), out, do_train=False)


@pytest.mark.parametrize(("name", "metric"), [("text", "macro_f1"), ("mrpc", "f1"), ("ner", "f1")])
def test_models_are_chosen_by_the_given_metric(write, tmp_path, name, metric):
    write("train.tsv", "a\tB-x\n" if name == "ner" else "text\tlabel\na\tx\nb\ty\n")
    assert build_task(DataConfig(name, str(tmp_path), selection_metric=metric), "", True).metric_that_selects == metric


@pytest.mark.parametrize(
    ("name", "directory", "settings", "message"),
    [
        ("sst2", ".", {}, "--task_name is 'sst2'"),
        ("mnli", None, {}, "--data_dir is required"),
        ("text", None, {}, "--data_dir .* --train_file"),
        ("text", None, {"test_file": "a.csv", "dev_file": "missing.csv"}, r"--dev_file: .* 'missing\.csv'"),
        ("text", ".", {"selection_metric": "f1"}, "--selection_metric: .* f1.* accuracy, macro_f1"),
        ("cola", ".", {"train_file": "own.tsv"}, r"--train_file is not used with --task_name=cola\."),
        ("mnli", ".", {"labels": ["a", "b"]}, r"--labels is used only with --task_name=text or ner\."),
        ("mnli", ".", {"xnli_language": "de"}, r"--xnli_language is used only with --task_name=xnli\."),
        ("ner", ".", {"columns": Columns(text="word")}, r"--text_column is used only with --task_name=text\."),
        ("text", ".", {"columns": Columns(text="label")}, "--text_column and other flags use the column 'label'"),
        ("text", ".", {"tag_scheme": "plain"}, r"--tag_scheme is used only with --task_name=ner\."),
        ("swag", ".", {"delimiter": ";"}, r"--delimiter is used only with --task_name=text or multiple_choice or sim"),
        ("swag", ".", {"problem": "regression"}, r"--problem is used only with --task_name=text\."),
        ("text", ".", {"document_context": False}, r"--document_context is used only with --task_name=ner\."),
        ("ner", ".", {"labels": ["X", "X"]}, "--labels: X, X has duplicates"),
        ("text", ".", {"problem": "regression", "labels": ["a", "b"]}, "--labels"),
        ("text", ".", {"problem": "regression", "class_weights": "balanced"}, "--class_weights"),
        ("text", ".", {"problem": "regression", "loss": LossConfig(0.1)}, "--label_smoothing is used only with --prob"),
        ("cola", ".", {"loss": LossConfig(focal_gamma=2)}, "--focal_gamma is used only with --task_name=text or ner"),
        ("text", ".", {"problem": "regression", "confidence": SURE}, "--min_probability is used only with --problem="),
        ("ner", ".", {"confidence": SURE}, "--min_probability is used only with --task_name=text"),
        ("text", ".", {"confidence": ConfidenceConfig(abstain_label="x")}, "--abstain_label .* --min_probability"),
        ("text", ".", {"label_threshold": "0.4"}, "--label_threshold is used only with --problem=multi_label"),
        ("text", ".", {"problem": "multi_label", "label_threshold": "1.5"}, r"--label_threshold is '1\.5'"),
        ("text", ".", {"columns": Columns(label_separator=";")}, "--label_separator is .*--problem=classification"),
        ("text", ".", {"problem": "multi_label", "columns": Columns(label_separator="")}, "--label_separator is empty"),
        ("text", ".", {"dev_fraction": 1.5}, r"--dev_fraction is 1\.5"),
        ("text", ".", {"dev_fraction": 0.5, "dev_file": "a.csv"}, "--dev_fraction is not used with --dev_file"),
        ("mnli", ".", {"dev_fraction": 0.5}, r"--dev_fraction is not used with --task_name=mnli\."),
        ("text", ".", {"columns": Columns(text_b="b"), "documents": LongDocuments("windows")}, "--long_documents"),
        ("cola", ".", {"documents": LongDocuments("windows")}, "is used only with --task_name=text"),
    ],
)
def test_settings_that_do_not_fit_the_task_are_refused(write, tmp_path, name, directory, settings, message):
    write("a.csv", "text\na\n")
    data_dir = directory and str(tmp_path)
    settings = settings | ({"test_file": str(tmp_path / "a.csv")} if "test_file" in settings else {})
    assert_refused(message, lambda: build_task(DataConfig(name, data_dir, **settings), str(tmp_path), do_train=True))
