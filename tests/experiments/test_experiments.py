"""Tests complete, interrupted and failed runs, and tables from recorded results. A substitute replaces the programs."""

import csv
import json
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest

from bert_tf.runtime import files
from experiments import report, runner, schema
from experiments.assembly import Assembly
from experiments.runs import check_data, in_order
from tests import programs
from tests.conftest import ROOT

STAND_IN = [sys.executable, "-SE", str(pathlib.Path(__file__).parent / "stand_in.py")]
# The table with the fewest runs.
SMALL = "table3"
# `python -m experiments` with the substitute.
HARNESS = f"""
import functools
from experiments import __main__ as command, runner
runner.Runner = functools.partial(runner.Runner, launcher={STAND_IN!r})
command.program.run(command.main, takes_names=True)
"""


def output(work_dir: pathlib.Path, *arguments: str, status: int = 0) -> str:
    """Runs the harness, by default for `SMALL`, and returns the output."""
    return programs.run("-c", HARNESS, *(arguments or [SMALL]), f"--work_dir={work_dir}", expect=status)


def assembly(name: str = "table5", scale: str = "smoke", data_dir: object = ROOT, **settings) -> Assembly:
    given = schema.load_experiment(name, scale), schema.load_scale(scale), str(data_dir)
    return Assembly(*given, **{"work_dir": "W", **settings})


def runs_of(name: str = "table5", scale: str = "smoke", **settings):
    return in_order(assembly(name, scale, **settings).runs)


def small(work_dir: pathlib.Path):
    return runs_of(SMALL, work_dir=str(work_dir))


def stand_in_runner(work_dir: pathlib.Path) -> runner.Runner:
    return runner.Runner(str(work_dir), launcher=STAND_IN)


def names(runs, kind: str) -> set[str]:
    return {run.name for run in runs if run.kind == kind}


def arguments(run) -> set[str]:
    return set(run.arguments)


def calls(work_dir: pathlib.Path) -> list[str]:
    return (work_dir / "runs" / "calls.txt").read_text().splitlines()


def told(work_dir: pathlib.Path, name: str, content: str = "") -> pathlib.Path:
    """Writes a file that changes the behaviour of the substitute."""
    (work_dir / "runs").mkdir(exist_ok=True)
    (work_dir / "runs" / name).write_text(content)
    return work_dir / "runs" / name


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Returns a directory with all runs of `SMALL` finished and the table written."""
    work_dir = tmp_path_factory.mktemp("finished")
    output(work_dir)
    return work_dir


def test_tables_share_their_pretraining():
    at_tiny = {name: runs_of(name, "tiny") for name in ("table5", "table8", "figure5")}
    of_table5 = names(at_tiny["table5"], "pretraining")
    assert len(of_table5) == 3 and names(at_tiny["figure5"], "pretraining") < of_table5
    assert len(of_table5 & names(at_tiny["table8"], "pretraining")) == 1
    assert names(at_tiny["table5"], "finetuning") & names(at_tiny["figure5"], "finetuning")


def test_a_data_set_replaces_one_task_only():
    headings = {cell.heading: cell.in_file for cell in assembly("table5").cells + assembly("table8").cells}
    assert headings == {
        "MNLI-m (authors)": "MNLI-m",
        "SQuAD": "SQuAD",
        "MNLI fine-tune (authors)": "MNLI fine-tune",
        "NER fine-tune (names)": "NER fine-tune",
        "NER features (names)": "NER features",
    }
    assert assembly("table5").left_out == ["QNLI", "MRPC", "SST-2"]


def test_a_run_has_the_settings_of_scale_and_row():
    cells = {(cell.row.name, cell.heading, cell.seed): cell.run for cell in assembly(scale="paper").cells}
    bilstm = cells["+ BiLSTM", "QNLI", 2]
    assert {"--bilstm_units=768", "--task_name=QNLI", "--random_seed=2", "--learning_rate=3e-05"} <= arguments(bilstm)
    [pretraining] = [file.run for file in bilstm.files if file.run]
    flags = arguments(pretraining)
    assert {"--objective=ltr", "--num_train_steps=1000000", "--second_max_seq_length=512"} <= flags
    data = [file.run for file in pretraining.files if file.run and file.run.kind == "data"]
    of_128, of_512, held_out = map(arguments, data)
    assert {"--max_seq_length=128", "--objective=ltr"} <= of_128
    assert {"--max_seq_length=512", "--objective=ltr", "--dupe_factor=10"} <= of_512
    assert {"--max_seq_length=512", "--objective=ltr", "--dupe_factor=1"} <= held_out


@pytest.mark.parametrize("scale", schema.SCALES)
def test_runs_have_only_flags_that_their_programs_use(scale):
    tagging = [run for run in assembly("table7", scale).runs if run.flags.get("task_name") == "ner"]
    features = [run for run in tagging if "feature_layers" in run.flags]
    assert 0 < len(features) < len(tagging)
    assert all("bilstm_units" not in run.flags for run in tagging if run not in features)
    assert all(("bilstm_units" in run.flags) == (scale != "paper") for run in features)


def test_all_rows_are_compared_on_the_same_held_out_text():
    pretraining = {cell.row.name: cell.run for cell in assembly("recipes", "tiny").cells}
    assert len({run.name for run in pretraining.values()}) == len(pretraining)
    [held_out] = {run.flags["eval_input_file"].run.name for run in pretraining.values()}
    flags = arguments(pretraining["masks of 40%"])
    assert {"--max_predictions_per_seq=7", "--second_max_predictions_per_seq=26"} <= flags
    assert {"--eval_max_seq_length=64", "--eval_max_predictions_per_seq=10"} <= flags
    assert f"--eval_input_file=W/runs/{held_out}/data.tfrecord" in flags
    # If training draws the masks, the data do not limit their number.
    flags = pretraining["dynamic masks"].flags
    assert flags["input_file"].run.flags["masking"] == "dynamic" and "max_predictions_per_seq" in flags
    assert "max_predictions_per_seq" not in flags["input_file"].run.flags


def test_a_checkpoint_in_the_middle_is_used_where_it_is_saved():
    cells = {cell.row.name: cell.run for cell in assembly("figure5").cells}
    pretraining = cells["Masked LM 40%"].flags["init_checkpoint"].run
    for row, step in (("Masked LM 40%", 8), ("Masked LM 100%", 20)):
        assert f"--init_checkpoint=W/runs/{pretraining.name}/model.ckpt-{step}" in arguments(cells[row])
    assert cells["Masked LM 100%"].settings["flags"]["init_checkpoint"] == f"{pretraining.name}/"


def test_without_pretraining_the_model_has_the_same_config(finished):
    [untrained, *_] = [cell.run for cell in assembly(SMALL).cells if cell.row.name == "without pre-training"]
    assert not [flag for flag in untrained.arguments if flag.startswith("--init_checkpoint")]
    pretraining = next(run for run in runs_of(SMALL) if run.kind == "pretraining")
    configs = [(finished / "runs" / x.name / "bert_config.json").read_text() for x in (untrained, pretraining)]
    assert configs[0] == configs[1] and json.loads(configs[0])["vocab_size"] == 6


def test_a_finished_model_replaces_pretraining(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "model" / "vocab.txt").write_text("a")
    cells = {cell.row.name: cell.run for cell in assembly(init_checkpoint=str(tmp_path / "model")).cells}
    assert f"--init_checkpoint={tmp_path / 'model'}" in arguments(cells["BERT_BASE"])
    assert f"--bert_config_file={tmp_path / 'model' / 'config.json'}" in arguments(cells["without pre-training"])
    assert cells["No NSP"].flags["init_checkpoint"].run.kind == "pretraining"
    check_data(cells.values())


def test_other_data_make_other_runs(tmp_path):
    for name in ("examples", "tests/golden/squad"):
        shutil.copytree(ROOT / name, tmp_path / name)
    assert names(runs_of(data_dir=tmp_path), "finetuning") == names(runs_of(), "finetuning")
    with open(tmp_path / "examples" / "authors" / "train.tsv", "a") as writer:
        writer.write("A new sentence.\tausten\n")
    changed = runs_of(data_dir=tmp_path)
    assert not names(changed, "finetuning") & {c.run.name for c in assembly().cells if "authors" in c.heading}
    assert names(changed, "pretraining") == names(runs_of(), "pretraining")


def test_runs_keep_their_names():
    """Finished runs are found by name. The data is missing in this test, so all machines give the same names."""
    by_kind = {run.kind: run.name for run in runs_of("table2", "tiny", data_dir="nowhere")}
    assert by_kind == {
        "vocabulary": "vocabulary-8eb3b3ea9c7a",
        "data": "data-596db98a9aa0",
        "pretraining": "pretraining-cf5ca43843b5",
        "finetuning": "finetuning-cfe9dd865c51",
        "ensemble": "ensemble-30e84a735834",
    }


def test_runs_are_listed_with_their_state(finished, tmp_path):
    cells = [cell for cell in assembly(SMALL).cells if cell.row.paper and cell.heading == "F1" and cell.seed == 2]
    shown = stand_in_runner(finished).listing(small(finished))
    assert f"{cells[0].run.name}/  # {cells[0].run.name} (BERT_LARGE (Single), " in shown and "left " not in shown
    shown = output(tmp_path, "table5", "--list", "--only=SQuAD,No NSP")
    assert "left      python -m run_pretraining --do_train" in shown
    assert (shown.count("-m run_squad"), shown.count("-m run_classifier"), shown.count("-m run_pretr")) == (2, 0, 1)
    assert not list(tmp_path.iterdir())


def test_finished_runs_are_not_run_again(finished):
    before = calls(finished)
    assert len(before) == len(set(before)) == len(runs_of(SMALL))
    assert stand_in_runner(finished).run(small(finished)) == "" and calls(finished) == before
    for run in small(finished):
        done = json.loads((finished / "runs" / run.name / "done.json").read_text())
        assert done["settings"] == run.settings and done["used_for"] == run.used_for and not done["resumed"]


def test_kills_change_nothing(finished, tmp_path):
    told(tmp_path, "kills", "4")
    for _ in range(4):
        output(tmp_path, status=signal.SIGKILL)
    output(tmp_path)
    assert len(calls(tmp_path)) == len(runs_of(SMALL)) + 4
    tables = [(directory / "tables" / f"{SMALL}.smoke.md").read_text() for directory in (tmp_path, finished)]
    assert tables[0] == tables[1] and "Missing" not in tables[0]


def test_failed_runs_are_named_and_the_others_are_run(tmp_path):
    fails = told(tmp_path, "run_squad.fails")
    message = output(tmp_path, SMALL, "table4", status=1)
    assert "exit status 1" in message and "the loss is not finite" in message and "Finished runs are kept" in message
    left = {run.kind for run in small(tmp_path) if not stand_in_runner(tmp_path).done(run)}
    assert left == {"finetuning"}
    text = (tmp_path / "tables" / f"{SMALL}.smoke.md").read_text()
    assert "Missing: BERT_LARGE (Single), EM, seed 1; BERT_LARGE (Single), EM, seed 2" in text
    assert (tmp_path / "tables" / "table4.smoke.md").exists()
    fails.unlink()
    assert stand_in_runner(tmp_path).run(small(tmp_path)) == ""


@pytest.mark.parametrize(
    ("arguments", "place", "found"),
    [
        (["--report"], "No table or figure is given", "figure5, recipes, table1"),
        ([SMALL, "--scale=tiny"], "--data_dir", "books"),
        ([SMALL, "table99"], "table99", "recipes"),
        ([SMALL, "--data_dir=/nowhere", "--report"], "--data_dir", "/nowhere/examples"),
        (["table5", "--scale=tiny", "--data_dir=/nowhere"], "--data_dir", "/nowhere/glue/QNLI: "),
        (["table5", "--scale=paper", "--data_dir=/nowhere"], "--data_dir", "/nowhere/pretrain/wikipedia/*: "),
        (["table5", "--init_checkpoint=nowhere"], "nowhere: ", "--init_checkpoint"),
        ([SMALL, "--device_flags=--learning_rate=9"], "--device_flags", "learning_rate"),
        ([SMALL, "--device_flags=--tpu_name=a,--num_tpu_cores=x"], "--device_flags.num_tpu_cores", "int"),
        ([SMALL, "--only=Nothing"], "--only", "BERT_LARGE (Single)"),
        (["{tmp}/x.toml"], "without pre-training, F1, seed 1): run_squad", "num_restarts"),
    ],
)
def test_mistakes_are_named_before_anything_is_run_or_written(tmp_path, arguments, place, found):
    text = (schema.DIRECTORY / f"{SMALL}.toml").read_text()
    # Only run_classifier.py has this flag.
    (tmp_path / "x.toml").write_text(text.replace("pretraining = false", "finetuning.num_restarts = 2"))
    message = output(tmp_path, *(argument.format(tmp=tmp_path) for argument in arguments), status=1)
    assert place in message and found in message
    assert [path.name for path in tmp_path.iterdir()] == ["x.toml"]


def test_a_part_of_a_table_does_not_replace_the_table(finished, tmp_path):
    shutil.copytree(finished / "runs", tmp_path / "runs")
    output(tmp_path, SMALL, "--report", "--only=EM,BERT_LARGE (Single)")
    names_of_files = {path.name for path in (tmp_path / "tables").iterdir()}
    assert names_of_files == {f"{SMALL}.smoke.EM.BERT_LARGE_Single_.{ending}" for ending in ("md", "csv", "png")}


def test_only_training_has_the_flags_of_devices_and_features():
    flag = "--distribution_strategy=mirrored"
    runs = runner.Runner("W", [flag])
    for run in runs_of("table8"):
        command = runs.command(run)
        assert (flag in command) == (run.kind in ("pretraining", "finetuning"))
        assert ("--features_dir=W/features" in command) == ("feature_layers" in run.flags)


def test_scores_are_those_of_all_data_sets(tmp_path):
    for suffix, score in (("", 1), ("_test", 2), ("_dev_mismatched", 3)):
        files.write_json(str(tmp_path / f"eval_results{suffix}.json"), {"f1": score, "model": "m"})
    assert runner.scores(tmp_path, "finetuning") == {"f1": 1, "test_f1": 2, "mismatched_f1": 3}


def recorded(work_dir: pathlib.Path, name: str, scores: dict[str, list[float]]) -> report.Table:
    """Writes scores as finished runs of a table's column MNLI-m, and returns the table."""
    made = assembly(name, only=["MNLI-m"])
    for cell in made.cells:
        of_row = scores.get(cell.row.name, [])
        if cell.seed <= len(of_row):
            done = {"seconds": 60.0, "scores": {"eval_accuracy": of_row[cell.seed - 1]}}
            files.write_json(str(work_dir / "runs" / cell.run.name / "done.json"), done)
    made.experiment.claims = [
        schema.Claim("NSP helps", "BERT_BASE", "No NSP", "MNLI-m"),
        schema.Claim("Direction", "No NSP", "LTR & No NSP", "MNLI-m"),
        schema.Claim("Nothing helps", "without pre-training", "BERT_BASE", "MNLI-m"),
    ]
    return report.Table(made.experiment, made.cells, stand_in_runner(work_dir))


def test_a_table_from_recorded_results(tmp_path):
    scores = {"BERT_BASE": [0.9, 0.92], "No NSP": [0.8, 0.84], "LTR & No NSP": [0.7], "+ BiLSTM": []}
    made = recorded(tmp_path, "table5", {**scores, "without pre-training": [0.5, 0.5]})
    text = made.write(str(tmp_path / "table5"), ["QNLI"])
    assert (tmp_path / "table5.md").read_text() == text
    lines = text.splitlines()
    assert lines[2] == "|  | MNLI-m (authors) | paper |"
    assert lines[4] == "| BERT_BASE | 91.0 ± 1.4 | 84.4 |" and lines[6] == "| LTR & No NSP | 70.0 | 82.1 |"
    # Differences of 10 and 8 over two seeds: t = 9, one degree of freedom.
    assert "holds. In MNLI-m (authors), BERT_BASE is 9.00 better than No NSP, over 2 seeds (p = 0.035" in text
    assert "Direction: not tested" in text and "over the seeds 1, 2.\n" in text
    assert "Nothing helps: is not shown. In MNLI-m (authors), without pre-training is 41.00 worse" in text
    assert "Not at this scale: QNLI." in text and "Missing: LTR & No NSP, MNLI-m (authors), seed 2; + BiLSTM" in text
    rows = list(csv.DictReader((tmp_path / "table5.csv").open()))
    first = {"row": "BERT_BASE", "column": "MNLI-m (authors)", "seed": "1", "score": "90.0", "paper": "84.4"}
    assert rows[0].items() >= first.items() and rows[5]["score"] == ""
    assert (tmp_path / "runs" / rows[0]["run"] / "done.json").exists()
    assert (tmp_path / "table5.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("scores", "lower_is_better", "expected"),
    [
        ([0.75, 0.8], True, "is 21.25 worse than"),
        ([0.75, 0.8], False, "is 21.25 better than"),
        ([0.75, 1.0], False, "not tested"),
    ],
)
def test_claims_use_the_better_direction(tmp_path, scores, lower_is_better, expected):
    of_others = [0.5, 0.75 if scores[1] == 1 else 0.625]
    made = recorded(tmp_path, "table5", {"BERT_BASE": scores, "No NSP": of_others})
    made._experiment.columns["MNLI-m"].lower_is_better = lower_is_better
    assert expected in made.tested(made._experiment.claims[0])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scores", [{}, {"Masked LM 40%": [0.5, 0.6], "Masked LM 100%": [0.7, 0.8]}])
def test_a_figure_of_lines_and_one_without_results(tmp_path, scores):
    text = recorded(tmp_path, "figure5", scores).write(str(tmp_path / "figure5"), [])
    assert ("| Masked LM 40% | 55.0 ± 7.1 |  |" in text) == bool(scores)
    assert "Missing: Left-to-Right 40%" in text or not scores
    assert (tmp_path / "figure5.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow  # minutes: Table 2 at the scale smoke, with the real programs
def test_smoke_of_a_table_with_an_ensemble(tmp_path):
    command = [sys.executable, "-m", "experiments", "table2", f"--work_dir={tmp_path}"]
    subprocess.run(command, cwd=ROOT, check=True)
    rows = list(csv.DictReader((tmp_path / "tables" / "table2.smoke.csv").open()))
    assert {row["row"] for row in rows} == {"BERT_BASE (Single)", "BERT_LARGE (Ensemble)", "without pre-training"}
    for row in rows:
        written = json.loads((tmp_path / "runs" / row["run"] / "eval_results.json").read_text())
        assert float(row["score"]) == written["exact_match" if row["column"] == "EM" else "f1"]
