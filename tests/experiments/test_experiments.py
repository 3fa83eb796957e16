"""Pieces, plans, runs that are killed and shared, and tables from recorded results; a stand-in is what they run."""

import csv
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import msgspec
import pytest

from bert_tf.config import BertConfig
from bert_tf.runtime import files, outputs
from bert_tf.runtime.files import InputError
from experiments import report, runner, schema
from experiments.assembly import Assembly
from experiments.pieces import check_data, in_order
from tests.conftest import ROOT

STAND_IN = [sys.executable, "-SE", str(pathlib.Path(__file__).parent / "stand_in.py")]
# The table that has the fewest runs.
SMALL = "table3"
# `python -m experiments` with the stand-in, without pictures; as often as TIMES says, each time in a fork but the last.
HARNESS = f"""
import functools
import os
from experiments import __main__ as command, report, runner
runner._POLL_SECONDS = 0.05
runner.Runner = functools.partial(runner.Runner, launcher={STAND_IN!r})
report.Table._draw = lambda table, figure: None
for _ in range(int(os.environ.get("TIMES", 1)) - 1):
    if os.fork() == 0:
        break
    assert os.waitstatus_to_exitcode(os.wait()[1]) == -{signal.SIGKILL:d}
command.program.run(command.main, takes_names=True)
"""


def harness(work_dir: pathlib.Path, *arguments: str, times: int = 1) -> subprocess.Popen:
    """Starts the harness, with `SMALL` if no arguments are given, and again after each of `times` - 1 kills."""
    command = [sys.executable, "-c", HARNESS, *(arguments or [SMALL]), f"--work_dir={work_dir}"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, "TIMES": str(times)}, **streams)


def said(work_dir: pathlib.Path, *arguments: str, status: int = 1, times: int = 1) -> str:
    """What the harness says until it ends with this status."""
    process = harness(work_dir, *arguments, times=times)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == status, output
    return output


def assembly(name: str = "table5", scale: str = "smoke", data_dir: object = ROOT, **settings) -> Assembly:
    return Assembly(schema.load_experiment(name, scale), schema.load_scale(scale), str(data_dir), **settings)


def pieces_of(name: str = "table5", scale: str = "smoke", **settings):
    return in_order([cell.piece for cell in assembly(name, scale, **settings).cells])


def stand_in_runner(work_dir: pathlib.Path) -> runner.Runner:
    return runner.Runner(str(work_dir), launcher=STAND_IN)


def names(pieces, kind: str) -> set[str]:
    return {piece.name for piece in pieces if piece.kind == kind}


def calls(work_dir: pathlib.Path) -> list[str]:
    return (work_dir / "pieces" / "calls.txt").read_text().splitlines()


def table(work_dir: pathlib.Path) -> str:
    """The table of `SMALL` in Markdown."""
    experiment = schema.load_experiment(SMALL, "smoke")
    return report.Table(experiment, assembly(SMALL).cells, stand_in_runner(work_dir)).write(str(work_dir / SMALL), [])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder in which all runs of `SMALL` are finished."""
    work_dir = tmp_path_factory.mktemp("finished")
    stand_in_runner(work_dir).run(pieces_of(SMALL))
    return work_dir


def test_tables_share_their_pretraining():
    at_tiny = {name: pieces_of(name, "tiny") for name in ("table5", "table8", "figure5")}
    assert len(names(at_tiny["table5"], "pretraining")) == 3
    assert names(at_tiny["figure5"], "pretraining") < names(at_tiny["table5"], "pretraining")
    shared = names(at_tiny["table5"], "pretraining") & names(at_tiny["table8"], "pretraining")
    assert len(shared) == 1
    assert names(at_tiny["table5"], "finetuning") & names(at_tiny["figure5"], "finetuning")


def test_a_data_set_takes_the_place_of_one_task_only():
    cells = assembly("table5").cells + assembly("table8").cells
    headings = {cell.heading: cell.in_file for cell in cells}
    assert headings == {
        "MNLI-m (authors)": "MNLI-m",
        "SQuAD": "SQuAD",
        "MNLI fine-tune (authors)": "MNLI fine-tune",
        "NER fine-tune (names)": "NER fine-tune",
        "NER features (names)": "NER features",
    }
    assert assembly("table5").left_out == ["QNLI", "MRPC", "SST-2"]


def test_a_run_has_the_settings_of_scale_and_row():
    [bilstm] = [c.piece for c in assembly(scale="paper").cells if c.name == "row '+ BiLSTM', column 'QNLI', seed 2"]
    flags = set(bilstm.command("P"))
    assert {"--bilstm_units=768", "--task_name=QNLI", "--random_seed=2", "--learning_rate=3e-05"} <= flags
    [pretraining] = bilstm.needs
    flags = set(pretraining.command("P"))
    assert {"--objective=ltr", "--num_train_steps=1000000", "--second_max_seq_length=512"} <= flags
    of_128, of_512, held_out = ({*piece.command("P")} for piece in pretraining.needs if piece.kind == "data")
    assert {"--max_seq_length=128", "--objective=ltr"} <= of_128
    assert {"--max_seq_length=512", "--objective=ltr", "--dupe_factor=10"} <= of_512
    assert {"--max_seq_length=512", "--objective=ltr", "--dupe_factor=1"} <= held_out


def test_runs_have_only_flags_that_their_programs_use():
    for scale in schema.SCALES:
        tagging = [piece for piece in assembly("table7", scale).pieces if piece.flags.get("task_name") == "ner"]
        features = [piece for piece in tagging if "feature_layers" in piece.flags]
        assert 0 < len(features) < len(tagging)
        assert all("bilstm_units" not in piece.flags for piece in tagging if piece not in features)
        assert all(("bilstm_units" in piece.flags) == (scale != "paper") for piece in features)


def test_all_rows_are_compared_on_the_same_held_out_text():
    pretraining = {cell.row.name: cell.piece for cell in assembly("recipes", "tiny").cells}
    assert len({piece.name for piece in pretraining.values()}) == len(pretraining)
    [held_out] = {piece.flags["eval_input_file"].piece.name for piece in pretraining.values()}
    flags = set(pretraining["masks of 40%"].command("P"))
    assert {"--max_predictions_per_seq=7", "--second_max_predictions_per_seq=26"} <= flags
    assert {"--eval_max_seq_length=64", "--eval_max_predictions_per_seq=10"} <= flags
    assert f"--eval_input_file=P/{held_out}/data.tfrecord" in flags
    # What training masks is made without a limit, which training has.
    flags = pretraining["dynamic masks"].flags
    assert flags["input_file"].piece.flags["masking"] == "dynamic" and "max_predictions_per_seq" in flags
    assert "max_predictions_per_seq" not in flags["input_file"].piece.flags


def test_a_checkpoint_in_the_middle_is_taken_where_it_is_saved(tmp_path):
    cells = {cell.row.name: cell.piece for cell in assembly("figure5").cells}
    pretraining = cells["Masked LM 40%"].needs[0]
    assert f"--init_checkpoint=P/{pretraining.name}/model.ckpt-8" in cells["Masked LM 40%"].command("P")
    assert f"--init_checkpoint=P/{pretraining.name}/model.ckpt-20" in cells["Masked LM 100%"].command("P")
    # As before it was named in the command, so that runs keep their names.
    assert cells["Masked LM 100%"].settings["flags"]["init_checkpoint"] == f"{pretraining.name}/"
    (tmp_path / "x.toml").write_text(
        'title = "X"\ncolumns.QNLI = { task = "QNLI", metric = "f1" }\nrows = [{ name = "a", checkpoint = 0.5 }]'
    )
    with pytest.raises(
        InputError, match=r"X: row 'a' needs the checkpoint of step 10.* multiple of save_checkpoints_steps"
    ):
        assembly(str(tmp_path / "x.toml"))


def test_without_pretraining_the_model_has_the_same_config(finished):
    [fresh, *_] = [cell.piece for cell in assembly(SMALL).cells if cell.row.name == "without pre-training"]
    assert not [flag for flag in fresh.command("P") if flag.startswith("--init_checkpoint")]
    pretraining = next(piece for piece in pieces_of(SMALL) if piece.kind == "pretraining")
    configs = [(finished / "pieces" / piece.name / "bert_config.json").read_text() for piece in (fresh, pretraining)]
    assert configs[0] == configs[1] and json.loads(configs[0])["vocab_size"] == 6


def test_a_finished_model_takes_the_place_of_pretraining(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    given = assembly("table5", init_checkpoint=str(tmp_path / "model"))
    commands = {cell.row.name: cell.piece.command("P") for cell in given.cells}
    assert f"--init_checkpoint={tmp_path / 'model'}" in commands["BERT_BASE"]
    assert f"--bert_config_file={tmp_path / 'model' / 'config.json'}" in commands["without pre-training"]
    with pytest.raises(InputError, match="--init_checkpoint: there is no folder 'nowhere'"):
        assembly("table5", init_checkpoint="nowhere")
    assert names([cell.piece.needs[0] for cell in given.cells if cell.row.name == "No NSP"], "pretraining")


def test_other_data_make_other_runs(tmp_path):
    for name in ("examples", "tests/golden/squad"):
        shutil.copytree(ROOT / name, tmp_path / name)
    assert names(pieces_of(data_dir=tmp_path), "finetuning") == names(pieces_of(), "finetuning")
    with open(tmp_path / "examples" / "authors" / "train.tsv", "a") as writer:
        writer.write("A new sentence.\tausten\n")
    changed = pieces_of(data_dir=tmp_path)
    assert not names(changed, "finetuning") & {c.piece.name for c in assembly().cells if "authors" in c.heading}
    assert names(changed, "pretraining") == names(pieces_of(), "pretraining")


def test_missing_data_are_named_with_what_to_fetch(tmp_path):
    for scale, name in (("tiny", "glue/QNLI"), ("paper", "pretrain/wikipedia/*")):
        with pytest.raises(InputError, match="Fetch and put here") as raised:
            check_data(pieces_of(scale=scale, data_dir=tmp_path))
        assert f"{tmp_path}/{name}: " in str(raised.value)
    check_data(pieces_of())
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    of_authors = [cell.piece for cell in assembly(data_dir=tmp_path).cells if "authors" in cell.heading]
    check_data(of_authors)  # SQuAD is missing, but is not needed


def test_the_plan_counts_what_is_left_and_its_cost(tmp_path):
    scale = schema.load_scale("paper")
    text = report.plan(pieces_of("table6", "paper"), stand_in_runner(tmp_path), scale)
    lines = {line.split()[0]: line.split()[1:] for line in text.splitlines()}
    assert lines["kind"] == ["runs", "finished", "left", "running", "GB", "hours", "device", "hours"]
    assert lines["pretraining"][:4] == ["6", "0", "6", "0"] and lines["finetuning"][0] == "105"
    hours, device_hours = map(float, lines["pretraining"][-2:])
    assert hours > 3 * 96 and device_hours == pytest.approx(16 * hours, rel=1e-3)


def test_the_plan_counts_all_trials_of_a_sweep(tmp_path):
    sweep = "finetuning = { sweep = true, sweep_batch_sizes = 32, sweep_learning_rates = '5e-5,4e-5,3e-5' }"
    work, disk = [], []
    for row in ("", sweep, "finetuning.num_restarts = 5"):
        (tmp_path / "x.toml").write_text(
            f'title = "X"\ncolumns.QNLI = {{ task = "QNLI", metric = "f1" }}\n[[rows]]\nname = "a"\n{row}\n'
        )
        piece = assembly(str(tmp_path / "x.toml"), "paper").cells[0].piece
        work.append(piece.work)
        disk.append(piece.disk)
    assert [x / work[0] for x in work] == [1, 9, 5]  # with the three numbers of epochs that are tried unless given
    assert [x / disk[0] for x in disk] == [1, 2, 2]  # the best trial is kept


def test_what_is_on_the_disk_already_needs_no_room(tmp_path, monkeypatch):
    runs, piece = stand_in_runner(tmp_path), pieces_of(SMALL)[0]
    files.make_folder(runs.path(piece))
    assert runs.bytes_left(piece) == piece.disk
    with open(runs.path(piece, "half"), "wb") as writer:
        writer.truncate(int(piece.disk / 2))
    assert runs.bytes_left(piece) == piece.disk / 2
    last = report.plan([piece], runs, schema.load_scale("smoke")).splitlines()[-2]
    assert float(last.split()[5]) == piece.disk / 2 / 1e9
    free = int(piece.disk * 0.6)
    monkeypatch.setattr(outputs.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, free))
    runs.run([piece])
    assert runs.done(piece)


def test_a_plan_needs_no_permission_to_write(finished, monkeypatch):
    runs, piece = stand_in_runner(finished), pieces_of(SMALL)[0]
    assert pathlib.Path(runs.path(piece, "lock")).exists()
    monkeypatch.setattr(runs, "done", lambda piece: None)

    def read_only(file, mode="r", *arguments, _open=open, **options):
        if set(mode) & set("wax+"):
            raise PermissionError(13, "Permission denied", file)
        return _open(file, mode, *arguments, **options)

    monkeypatch.setattr("builtins.open", read_only)
    assert "running" in report.plan([piece], runs, schema.load_scale("smoke"))
    assert report.listing([piece], runs).startswith("left      python -m data_prep.build_vocab")


def test_runs_keep_their_names():
    """Finished runs are found by them. The data are missing here, so that all machines have the same."""
    by_kind = {piece.kind: piece.name for piece in pieces_of("table2", "tiny", data_dir="nowhere")}
    assert by_kind == {
        "vocabulary": "vocabulary-8eb3b3ea9c7a",
        "data": "data-596db98a9aa0",
        "pretraining": "pretraining-cf5ca43843b5",
        "finetuning": "finetuning-cfe9dd865c51",
        "ensemble": "ensemble-30e84a735834",
    }


def test_a_run_says_what_it_is_for(finished):
    [tuning] = [
        cell.piece for cell in assembly(SMALL).cells if cell.row.paper and cell.heading == "F1" and cell.seed == 2
    ]
    shown = report.listing(pieces_of(SMALL), stand_in_runner(finished))
    assert f"{tuning.name}/  # {tuning.name} (BERT_LARGE (Single), " in shown and ", seed 2)\n" in shown
    done = json.loads((finished / "pieces" / tuning.name / "done.json").read_text())
    assert done["used_for"].startswith("BERT_LARGE (Single), ") and done["used_for"].endswith(", seed 2")


def test_the_plan_takes_the_speed_of_finished_runs(finished, tmp_path):
    work_dir = tmp_path / "work"
    shutil.copytree(finished, work_dir)
    tunings = [piece for piece in pieces_of(SMALL) if piece.kind == "finetuning"]
    for piece in tunings[:-1]:
        path = work_dir / "pieces" / piece.name / "done.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "seconds": piece.work}))
    os.remove(work_dir / "pieces" / tunings[-1].name / "done.json")
    text = report.plan(pieces_of(SMALL), stand_in_runner(work_dir), schema.load_scale("smoke"))
    [of_tuning] = [line.split() for line in text.splitlines() if "finetuning" in line]
    assert float(of_tuning[-1]) == pytest.approx(tunings[-1].work / 3600, rel=1e-3)


def test_the_command_prints_plan_and_list(tmp_path):
    shown = said(tmp_path, "table5", "figure5", "--list", status=0)
    assert "Table 5: the pre-training tasks, dev sets\n" in shown and "Figure 5: MNLI after steps" in shown
    assert shown.count("left      python -m run_pretraining --do_train") == 5
    assert "A device is two cores" in said(tmp_path, "table5", "--plan", status=0)
    assert not list(tmp_path.iterdir())


def test_only_what_is_named_is_listed(tmp_path):
    shown = report.listing(assembly(only=["SQuAD", "No NSP"]).pieces, stand_in_runner(tmp_path))
    assert (shown.count("-m run_squad"), shown.count("-m run_classifier"), shown.count("-m run_pretr")) == (2, 0, 1)
    with pytest.raises(InputError, match=r"'Nothing' at this scale; Table 5.* has the columns MNLI-m, SQuAD, and the"):
        assembly(only=["Nothing"])


def test_finished_runs_are_not_run_again(finished):
    before = calls(finished)
    assert len(before) == len(set(before)) == len(pieces_of(SMALL))
    stand_in_runner(finished).run(pieces_of(SMALL))
    assert calls(finished) == before


def test_killed_harnesses_change_nothing(finished, tmp_path):
    """One is killed while a program runs; the program ends alone, and then two others share what is left."""
    (tmp_path / "pieces").mkdir()
    (tmp_path / "pieces" / "slow").touch()
    killed = harness(tmp_path)
    while not (tmp_path / "pieces" / "calls.txt").exists():
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    [first] = [piece for piece in pieces_of() if piece.kind == "vocabulary"]
    assert stand_in_runner(tmp_path).state(first) == "running"  # the program holds its claim
    others = [harness(tmp_path) for _ in range(2)]
    time.sleep(1)
    assert len(calls(tmp_path)) == 1  # they wait for it
    (tmp_path / "pieces" / "slow").unlink()
    assert [other.wait(timeout=60) for other in others] == [0, 0]
    assert len(calls(tmp_path)) == len(pieces_of(SMALL)) + 1  # only the vocabulary was begun twice
    assert table(tmp_path) == table(finished)
    done = json.loads((tmp_path / "pieces" / first.name / "done.json").read_text())
    assert done["resumed"] and done["settings"]["program"] == "data_prep.build_vocab"


def test_ten_kills_change_nothing(finished, tmp_path):
    (tmp_path / "pieces").mkdir()
    (tmp_path / "pieces" / "kills").touch()
    said(tmp_path, times=11, status=0)
    assert len(calls(tmp_path)) == len(pieces_of(SMALL)) + 10
    assert (tmp_path / "tables" / f"{SMALL}.smoke.md").read_text() == table(finished)


def test_sigterm_ends_the_program_too(tmp_path):
    (tmp_path / "pieces").mkdir()
    (tmp_path / "pieces" / "slow").touch()
    stopped = harness(tmp_path)
    while not (tmp_path / "pieces" / "calls.txt").exists():
        time.sleep(0.02)
    stopped.terminate()
    stopped.wait(timeout=20)
    [first] = [piece for piece in pieces_of() if piece.kind == "vocabulary"]
    assert stand_in_runner(tmp_path).state(first) == "left"


def test_a_run_that_fails_is_named_and_the_others_are_run(tmp_path):
    (tmp_path / "pieces").mkdir()
    fails = tmp_path / "pieces" / "run_squad.fails"
    fails.touch()
    with pytest.raises(InputError, match=r"(?s)exit status 1.*the loss is not finite.*Finished runs stay"):
        stand_in_runner(tmp_path).run(pieces_of(SMALL))
    assert not [
        piece for piece in pieces_of(SMALL) if piece.kind != "finetuning" and not stand_in_runner(tmp_path).done(piece)
    ]
    row = "row 'BERT_LARGE (Single)'"
    assert f"Missing: {row}, column 'EM', seed 1; {row}, column 'EM', seed 2;" in table(tmp_path)
    fails.unlink()
    stand_in_runner(tmp_path).run(pieces_of(SMALL))
    assert "Missing" not in table(tmp_path)


def test_a_failed_table_does_not_stop_the_next(tmp_path):
    (tmp_path / "pieces").mkdir()
    (tmp_path / "pieces" / "run_squad.fails").touch()
    assert "the loss is not finite" in said(tmp_path, SMALL, "table4")
    texts = [(tmp_path / "tables" / f"{name}.smoke.md").read_text() for name in (SMALL, "table4")]
    assert "Missing: row 'BERT_LARGE (Single)', column 'EM', seed 1; " in texts[0]
    assert "has no 'eval_accuracy'; it has best_exact, best_f1)" in texts[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--report"], "Name a table or a figure: figure5, recipes, table1"),
        ([SMALL, "--scale=tiny"], "--data_dir is needed. --scale=tiny trains on books"),
        ([SMALL, "table99"], "There is no experiment 'table99'"),
        ([SMALL, "--data_dir=/nowhere"], "This scale needs data that are not there"),
        ([SMALL, "--data_dir=/nowhere", "--report"], "This scale needs data that are not there"),
        ([SMALL, "--device_flags=--learning_rate=9"], "--device_flags: --learning_rate=9 does not say where"),
        (["{tmp}/x.toml"], "run_squad can't take these flags: Unknown command line flag"),
    ],
)
def test_what_is_wrong_is_named_before_anything_is_run_or_written(tmp_path, arguments, message):
    text = (schema.FOLDER / f"{SMALL}.toml").read_text()
    (tmp_path / "x.toml").write_text(text.replace("pretraining = false", "finetuning.lerning_rate = 1"))
    assert message in said(tmp_path, *(argument.format(tmp=tmp_path) for argument in arguments))
    assert [path.name for path in tmp_path.iterdir()] == ["x.toml"]


def test_a_part_of_a_table_does_not_replace_the_whole(finished, tmp_path):
    shutil.copytree(finished / "pieces", tmp_path / "pieces")
    said(tmp_path, SMALL, "--report", "--only=EM,BERT_LARGE (Single)", status=0)
    names_of_files = {path.name for path in (tmp_path / "tables").iterdir()}
    assert names_of_files == {f"{SMALL}.smoke.EM.BERT_LARGE_Single_.{ending}" for ending in ("md", "csv", "png")}


@pytest.mark.parametrize("content", ["{}", "[]", "", '"x"', '{"seconds": 1'])
def test_a_damaged_record_is_named_with_what_to_remove(finished, tmp_path, content):
    shutil.copytree(finished / "pieces", tmp_path / "pieces")
    folder = tmp_path / "pieces" / pieces_of(SMALL)[0].name
    (folder / "done.json").write_text(content)
    with pytest.raises(InputError, match=rf"{folder}/done.json.* Or remove {folder}/; it is made anew"):
        stand_in_runner(tmp_path).check(pieces_of(SMALL))


def test_only_training_has_the_flags_of_devices_and_features():
    flag = "--distribution_strategy=mirrored"
    runs = runner.Runner("W", [flag])
    for piece in pieces_of("table8"):
        command = runs.command(piece)
        assert (flag in command) == (piece.kind in ("pretraining", "finetuning"))
        assert ("--features_dir=W/features" in command) == ("feature_layers" in piece.flags)


def test_scores_are_those_of_all_data_sets(tmp_path):
    piece, runs = pieces_of()[-1], stand_in_runner(tmp_path)
    for suffix, score in (("", 1), ("_test", 2), ("_dev_mismatched", 3)):
        files.write_json(runs.path(piece, f"eval_results{suffix}.json"), {"f1": score, "model": "m"})
    assert runs._scores(piece) == {"f1": 1, "test_f1": 2, "mismatched_f1": 3}


def test_a_full_disk_is_named_before_a_run_begins(tmp_path, monkeypatch):
    monkeypatch.setattr(outputs.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 1000))
    with pytest.raises(
        InputError, match=r"--work_dir: vocabulary-\w+: the disk of .* is full: 0.00 GB are needed, but 0.00"
    ):
        stand_in_runner(tmp_path).run(pieces_of()[:1])
    assert not (tmp_path / "pieces" / "calls.txt").exists()


def test_a_changed_experiment_is_named(tmp_path):
    path, text = tmp_path / "x.toml", (schema.FOLDER / "table5.toml").read_text()
    path.write_text(text)
    record = str(tmp_path / "x.json")
    runner.record_beginning(record, assembly(str(path)).cells, False)
    path.write_text(text.replace('objective = "mlm"', 'objective = "mlm_nsp"'))
    changed = assembly(str(path)).cells
    with pytest.raises(InputError, match=r"'No NSP'.*: pretraining.objective was 'mlm', and is 'mlm_nsp' now"):
        runner.record_beginning(record, changed, False)
    runner.record_beginning(record, changed, True)
    files.write_json(str(tmp_path / "tables" / "x.smoke.json"), json.loads((tmp_path / "x.json").read_text()))
    path.write_text(text)
    message = said(tmp_path, str(path))
    assert "This experiment has changed since its runs began, as in\n  row" in message
    assert message.count("objective") == 1  # once, not for each seed and each column
    path.write_text(text.replace('objective = "mlm"', 'objective = "mlm_nsp"') + '[[rows]]\nname = "another"\n')
    runner.record_beginning(record, assembly(str(path)).cells, False)  # new rows change nothing of the others


def record_scores(work_dir: pathlib.Path, name: str, scores: dict[str, list[float]]) -> Assembly:
    """Writes scores as finished runs of the column MNLI-m of a table."""
    made = assembly(name)
    made.cells = [cell for cell in made.cells if cell.in_file == "MNLI-m"]
    for cell in made.cells:
        of_row = scores.get(cell.row.name, [])
        if cell.seed <= len(of_row):
            done = {"seconds": 60.0, "resumed": False, "scores": {"eval_accuracy": of_row[cell.seed - 1]}}
            files.write_json(str(work_dir / "pieces" / cell.piece.name / "done.json"), done)
    return made


def test_a_table_from_recorded_results(tmp_path):
    scores = {"BERT_BASE": [0.9, 0.92], "No NSP": [0.8, 0.84], "LTR & No NSP": [0.7], "+ BiLSTM": []}
    made = record_scores(tmp_path, "table5", {**scores, "without pre-training": [0.5, 0.5]})
    claim = schema.Claim("NSP helps", "BERT_BASE", "No NSP", "MNLI-m")
    other = schema.Claim("Direction", "No NSP", "LTR & No NSP", "MNLI-m")
    wrong = schema.Claim("Nothing helps", "without pre-training", "BERT_BASE", "MNLI-m")
    experiment = schema.load_experiment("table5", "smoke")
    experiment = msgspec.structs.replace(experiment, claims=[claim, other, wrong])
    of_results = report.Table(experiment, made.cells, stand_in_runner(tmp_path))
    text = of_results.write(str(tmp_path / "table5"), ["QNLI"])
    assert (tmp_path / "table5.md").read_text() == text
    lines = text.splitlines()
    assert lines[2] == "|  | MNLI-m (authors) | paper |"
    assert lines[4:7] == [
        "| BERT_BASE | 91.0 ± 1.4 | 84.4 |",
        "| No NSP | 82.0 ± 2.8 | 83.9 |",
        "| LTR & No NSP | 70.0 | 82.1 |",
    ]
    # Differences of 10 and 8 over two seeds: t = 9, one degree of freedom.
    assert (
        "NSP helps: holds. In MNLI-m (authors), BERT_BASE is 9.00 better than No NSP, over 2 seeds (p = 0.035" in text
    )
    assert "Direction: not tested" in text
    assert (
        "Nothing helps: is not shown. In MNLI-m (authors), without pre-training is 41.00 worse than BERT_BASE" in text
    )
    assert "Not at this scale: QNLI." in text
    assert "Missing: row 'LTR & No NSP', column 'MNLI-m (authors)', seed 2; row '+ BiLSTM'" in text
    rows = list(csv.DictReader((tmp_path / "table5.csv").open()))
    assert (rows[0]["row"], rows[0]["seed"], float(rows[0]["score"]), rows[0]["paper"]) == (
        "BERT_BASE",
        "1",
        90.0,
        "84.4",
    )
    assert rows[0]["run"] == made.cells[0].piece.name and rows[5]["score"] == ""
    assert (tmp_path / "table5.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("scores", "lower_is_better", "said"),
    [
        ([0.75, 0.8], True, "is 21.25 worse than"),
        ([0.75, 0.8], False, "is 21.25 better than"),
        (
            [0.75, 1.0],
            False,
            "not tested, which takes the column MNLI-m, two seeds of both rows, and differences that are not all",
        ),
    ],
)
def test_a_claim_knows_which_score_is_better(tmp_path, scores, lower_is_better, said):
    made = record_scores(tmp_path, "table5", {"BERT_BASE": scores, "No NSP": [0.5, 0.75 if scores[1] == 1 else 0.625]})
    column = msgspec.structs.replace(made.experiment.columns["MNLI-m"], lower_is_better=lower_is_better)
    experiment = msgspec.structs.replace(made.experiment, columns={"MNLI-m": column})
    of_results = report.Table(experiment, made.cells, stand_in_runner(tmp_path))
    assert said in of_results.tested(schema.Claim("It helps", "BERT_BASE", "No NSP", "MNLI-m"))


def test_a_table_says_which_seeds_are_finished(tmp_path):
    made = record_scores(tmp_path, "table5", {"BERT_BASE": [0.5]})
    text = report.Table(made.experiment, made.cells, stand_in_runner(tmp_path)).write(str(tmp_path / "x"), [])
    assert "over the seeds 1.\n" in text


def test_the_plan_counts_the_vocabulary_of_the_scale_or_of_the_row(tmp_path):
    [pretraining] = [piece for piece in pieces_of("table3") if piece.kind == "pretraining"]
    assert pretraining.disk == 5 * 12 * BertConfig.named(**pretraining.model, vocab_size=1000).num_parameters
    text = (
        (schema.FOLDER / "table3.toml")
        .read_text()
        .replace("at.smoke = { model = {} }", "at.smoke.model.vocab_size = 5000")
    )
    (tmp_path / "x.toml").write_text(text)
    [larger] = [piece for piece in pieces_of(str(tmp_path / "x.toml")) if piece.kind == "pretraining"]
    assert larger.disk == 5 * 12 * BertConfig.named(**larger.model).num_parameters > pretraining.disk


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scores", [{}, {"Masked LM 40%": [0.5, 0.6], "Masked LM 100%": [0.7, 0.8]}])
def test_a_figure_of_lines_and_one_without_results(tmp_path, scores):
    made = record_scores(tmp_path, "figure5", scores)
    drawn = report.Table(schema.load_experiment("figure5", "smoke"), made.cells, stand_in_runner(tmp_path))
    text = drawn.write(str(tmp_path / "figure5"), [])
    assert ("| Masked LM 40% | 55.0 ± 7.1 |  |" in text) == bool(scores)
    assert "Missing: row 'Left-to-Right 40%'" in text or not scores
    assert (tmp_path / "figure5.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow  # minutes: Table 2 at the scale smoke, with the real programs
def test_smoke_of_a_table_with_an_ensemble(tmp_path):
    command = [sys.executable, "-m", "experiments", "table2", f"--work_dir={tmp_path}"]
    subprocess.run(command, cwd=ROOT, check=True)
    rows = list(csv.DictReader((tmp_path / "tables" / "table2.smoke.csv").open()))
    assert {row["row"] for row in rows} == {"BERT_BASE (Single)", "BERT_LARGE (Ensemble)", "without pre-training"}
    for row in rows:
        written = json.loads((tmp_path / "pieces" / row["run"] / "eval_results.json").read_text())
        assert float(row["score"]) == written["exact_match" if row["column"] == "EM" else "f1"]
