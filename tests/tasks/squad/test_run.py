"""Tests run_squad.py and its parts on questions whose answer is always the letter x."""

import io
import itertools
import json
import re
import shutil
import sys

import numpy as np
import pytest

from bert_tf.checkpoints import saver
from bert_tf.config import BertConfig, ModelFiles
from bert_tf.finetuning.finetune import finetune
from bert_tf.finetuning.finetuning_config import FinetuningConfig
from bert_tf.finetuning.run import FinetuningRun
from bert_tf.optimization import OptimizerConfig
from bert_tf.runtime.files import InputError
from bert_tf.tasks import original_api
from bert_tf.tasks.squad import squad_task, typed_questions
from bert_tf.tasks.squad.answerer import Answerer
from bert_tf.tasks.squad.questions import make_example
from bert_tf.tasks.squad.rules import PREDICT_SPLIT, AnswerConfig, SquadConfig
from bert_tf.tasks.squad.squad_task import SquadTask
from bert_tf.text import FullTokenizer
from bert_tf.training.settings import TrainingConfig
from tests import programs
from tests.conftest import assert_refused, tensors_of, tiny_config, without_dropout

pytestmark = [pytest.mark.eager, pytest.mark.plain]
LENGTH, VERSION_2 = 24, {"version_2_with_negative": True}


def articles(count, version_2=False, first_id=0):
    """Returns paragraphs of letters with one x. In version 2.0, every third question has no answer."""
    letters = itertools.cycle("bcdefghijklmnop")
    paragraphs = []
    for number in range(first_id, first_id + count):
        words = [next(letters) for _ in range(7 + number % 5)]
        impossible = version_2 and number % 3 == 0
        if not impossible:
            words[number % len(words)] = "x"
        context = " ".join(words)
        answers = [] if impossible else [{"text": "x", "answer_start": context.index("x")}]
        question = {"id": f"q{number}", "question": "a", "answers": answers}
        paragraphs.append(
            {"context": context, "qas": [question | ({"is_impossible": impossible} if version_2 else {})]}
        )
    return {"data": [{"title": "letters", "paragraphs": paragraphs}]}


def write_file(directory, name, content):
    (directory / name).write_text(json.dumps(content))
    return str(directory / name)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Returns a directory with model and data files, and with finished runs in `run` and `run2`."""
    directory = tmp_path_factory.mktemp("squad")
    programs.write_model_files(directory)
    for version, is_2 in (("1", False), ("2", True)):
        write_file(directory, f"train{version}.json", articles(40, is_2))
        write_file(directory, f"dev{version}.json", articles(9, is_2, first_id=100))
    train(run_on(directory, "run", train_files=["train1.json"]))
    train(run_on(directory, "run2", train_files=["train1.json"], init="run"), epochs=1)
    return directory


def run_on(directory, output_dir, predict_file=None, train_files=(), init=None, **changes):
    """Returns a run. Relative paths are in the directory of the fixture."""
    config = SquadConfig(max_seq_length=LENGTH, max_query_length=4).replace(**changes)
    is_padded = config.pad_to_max_seq_length
    settings = FinetuningConfig(
        model=ModelFiles(init and str(directory / init)),
        max_seq_length=config.max_seq_length,
        training=TrainingConfig(
            str(directory / output_dir), OptimizerConfig(2e-2), 8, seed=1, pad_to_max_seq_length=is_padded
        ),
    )
    files = [str(directory / name) for name in train_files]
    task = SquadTask(config, files, predict_file and str(directory / predict_file))
    model_config = without_dropout(BertConfig.from_json_file(str(directory / "config.json")))
    return FinetuningRun(task, settings, (model_config, FullTokenizer(str(directory / "vocab.txt"))))


def train(run, epochs=16.0):
    finetune(run.task, run.settings.replace(do_train=True, num_train_epochs=epochs), run=run)


def predict(run, config=AnswerConfig()):
    return squad_task.answer_file(run, config, run.training_config.output_dir)


def answers_of(directory):
    return json.loads((directory / "predictions.json").read_text())


def test_a_trained_model_finds_the_answers(directory):
    results = predict(run_on(directory, "run", "dev1.json"))
    assert results == {"exact_match": 100.0, "f1": 100.0}
    assert set(answers_of(directory / "run").values()) == {"x"}
    written = json.loads((directory / "run" / "eval_results.json").read_text())
    assert written["f1"] == 100.0
    assert written["model"].startswith("step 80 (")
    assert (directory / "run" / "eval_results.txt").read_text() == "exact_match = 100.0\nf1 = 100.0\n"
    assert not (directory / "run" / "null_odds.json").exists()
    run = run_on(directory, "run", "dev1.json", answer_text="offsets")
    run.check_model()  # also a setting of training, but a trained model may answer with another value
    assert predict(run)["f1"] == 100.0


def test_a_trained_model_answers_with_other_windows(directory, tmp_path, capsys):
    windows = {"max_seq_length": 16, "doc_stride": 3, "max_query_length": 5}
    run = run_on(directory, tmp_path, "dev1.json", init="run", **windows)
    finetune(run.task, run.settings.replace(do_predict=True), run=run)
    changes = "doc_stride was 128, and is 3 now; max_query_length was 4, and is 5 now; max_seq_length was 24, and is 16"
    assert f"have changed: {changes} now.\n" in capsys.readouterr().err
    assert set(answers_of(tmp_path).values()) == {"x"}
    run = run_on(directory, tmp_path, "dev2.json", init="run", **VERSION_2)
    assert_refused(r"(?s)version_2_with_negative was .*pass --allow_changed_settings", run.check_model)
    run.with_settings(run.settings.replace(allow_changed_settings=True)).check_model()


def test_windows_padded_as_in_the_release_give_the_release_s_lists(directory, tmp_path):
    run = run_on(directory, tmp_path, "dev1.json", init="run", pad_to_max_seq_length=True)
    Answerer(run, AnswerConfig())  # loads the weights
    examples, windows = run.task.split(PREDICT_SPLIT), run.data.features(PREDICT_SPLIT)
    outputs = run.predict(windows, 8)
    assert outputs["start_logits"].shape == (9, LENGTH)
    features = []
    original_api.convert_examples_to_features(examples, run.tokenizer, LENGTH, 128, 4, False, features.append)
    columns = windows.unique_ids.tolist(), outputs["start_logits"].tolist(), outputs["end_logits"].tolist()
    files = [str(tmp_path / name) for name in ("released.json", "released_nbest.json")]
    results = [original_api.RawResult(*row) for row in zip(*columns, strict=True)]
    original_api.write_predictions(examples, features, results, 20, 30, True, *files, "")
    predict(run)
    assert (tmp_path / "nbest_predictions.json").read_text() == (tmp_path / "released_nbest.json").read_text()


def test_a_run_that_was_killed_between_two_files_ends_as_one_that_was_not(directory, tmp_path, capsys):
    def train_on_both(output_dir):
        train(run_on(directory, output_dir, train_files=["train1.json", "dev1.json"]), epochs=1)
        return tensors_of(output_dir)

    whole = train_on_both(tmp_path / "whole")
    shutil.copytree(tmp_path / "whole" / "stage_1", tmp_path / "killed" / "stage_1")
    capsys.readouterr()
    np.testing.assert_equal(train_on_both(tmp_path / "killed"), whole)
    shown = capsys.readouterr().err
    assert "stage_1 is already complete (step 5 of 5)" in shown
    assert shown.count(" variables from ") == 2
    assert "Num examples = 9\n" in shown
    assert "Training starts from randomly" not in shown  # starts from the weights of the previous file


def test_the_threshold_is_tuned_once_and_then_used(directory, tmp_path, capsys):
    def predict_with(threshold=None, tune=None, init="run"):
        run = run_on(directory, tmp_path, "dev2.json", init=init, **VERSION_2)
        scores = predict(run, AnswerConfig(threshold, tune))
        stored = tmp_path / "tuned.json"
        return scores, stored.read_text() if stored.exists() else ""

    assert predict_with(tune=False)[1] == ""
    scores, stored = predict_with()
    assert scores["NoAns_exact"] < 100.0  # the model was trained without unanswerable questions
    assert scores["best_f1"] >= scores["f1"]
    threshold = json.loads(stored)["null_score_diff_threshold"]
    assert threshold == scores["best_f1_thresh"] != 0.0

    capsys.readouterr()
    again, stored_again = predict_with()
    shown = capsys.readouterr().err
    assert f"Using the threshold {threshold}" in shown and f"The no-answer threshold is {threshold} (--null" in shown
    assert again["f1"] == pytest.approx(scores["best_f1"])
    assert stored_again == stored
    assert json.loads((tmp_path / "eval_results.json").read_text())["null_score_diff_threshold"] == threshold
    assert predict_with(threshold=1e9)[0]["NoAns_exact"] == 0.0

    predict_with(tune=False, init="run2")
    assert "tuned for another model" in capsys.readouterr().err
    stored_for_other = predict_with(init="run2")[1]
    assert stored_for_other != stored
    assert json.loads(stored_for_other)["model"] != json.loads(stored)["model"]


def test_ensembles(directory, tmp_path):
    dirs = [str(directory / "run"), str(directory / "run2")]
    run = run_on(directory, tmp_path / "both", "dev1.json")
    assert predict(run, AnswerConfig(ensemble_dirs=dirs)) == {"exact_match": 100.0, "f1": 100.0}
    for name in ("run", "run2"):
        predict(run_on(directory, name, "dev1.json"))
    merged = AnswerConfig(ensemble_dirs=dirs, ensemble_method="nbest")
    assert predict(run, merged)["f1"] == 100.0
    entry = json.loads((tmp_path / "both" / "nbest_predictions.json").read_text())["q100"][0]
    each = [json.loads((directory / n / "nbest_predictions.json").read_text())["q100"][0] for n in ("run", "run2")]
    assert entry["probability"] == pytest.approx(sum(one["probability"] for one in each) / 2)
    model = json.loads((tmp_path / "both" / "eval_results.json").read_text())["model"]
    assert re.fullmatch(rf"nbest of {dirs[0]} \(\w{{12}}\), {dirs[1]} \(\w{{12}}\)", model)
    message = "--ensemble_dirs: .*run has answers to another file than --predict_file"
    assert_refused(message, predict, run_on(directory, tmp_path, "train1.json"), merged)


def test_members_of_an_ensemble_must_fit_together(directory, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(directory / "run", other)
    record = json.loads((other / "run.json").read_text())
    record["resume_settings"]["do_lower_case"] = False
    (other / "run.json").write_text(json.dumps(record))
    run = run_on(directory, tmp_path, "dev1.json")
    both = AnswerConfig(ensemble_dirs=[str(directory / "run"), str(other)])
    assert_refused("(?s)other: the run was trained with other.*do_lower_case was", Answerer, run, both)
    assert_refused("do_lower_case", Answerer, run_on(directory, other, "dev1.json"), AnswerConfig())
    (other / "bert_config.json").write_text(tiny_config(vocab_size=50).to_json_string())
    assert_refused("vocab", Answerer, run, AnswerConfig(ensemble_dirs=[str(other)]))
    assert_refused("no checkpoint", Answerer, run, AnswerConfig())
    padded = run_on(directory, tmp_path, "dev1.json", pad_to_max_seq_length=True)
    one = AnswerConfig(ensemble_dirs=[str(directory / "run")])
    assert_refused("--pad_to_max_seq_length", Answerer, padded, one)
    assert_refused("--ensemble_method is 'vote'", AnswerConfig, ensemble_method="vote")
    assert_refused("--ensemble_method=nbest: requires --ensemble_dirs", AnswerConfig, ensemble_method="nbest")
    lists = one.replace(ensemble_method="nbest")
    assert_refused("--ensemble_method=nbest: can't answer typed questions", Answerer, run, lists)


def test_files_without_answers_or_tokens_are_answered(directory, tmp_path, capsys):
    content = articles(2)
    for paragraph in content["data"][0]["paragraphs"]:
        del paragraph["qas"][0]["answers"]
    run = run_on(directory, tmp_path, write_file(tmp_path, "t.json", content), init="run")
    assert predict(run) == {}
    assert answers_of(tmp_path) == {"q0": "x", "q1": "x"}
    for paragraph in content["data"][0]["paragraphs"]:
        paragraph["context"] = " "
    run = run_on(directory, tmp_path, write_file(tmp_path, "t.json", content), init="run")
    capsys.readouterr()
    predict(run)
    assert answers_of(tmp_path) == {"q0": "empty", "q1": "empty"}
    shown = capsys.readouterr().err
    assert "2 of 2 questions used, though the question or the context is blank: q0, q1" in shown
    assert "2 of 2 questions have no window" in shown
    assert "2 of 2 questions have no candidate among the n best, and get the answer 'empty': q0, q1" in shown


def test_answers_of_any_system_are_evaluated(directory, tmp_path):
    path = write_file(tmp_path, "answers.json", {"q100": "X!"} | {f"q{n}": "y" for n in range(101, 109)})
    for name, version in (("dev1.json", {}), ("dev2.json", VERSION_2)):
        task = SquadTask(SquadConfig(**version), predict_file=str(directory / name))
        results = squad_task.evaluate_file(task, path, str(tmp_path))
        assert results["f1"] == pytest.approx(100 / 9)
        assert json.loads((tmp_path / "eval_results.json").read_text()) == results


def test_typed_questions_are_answered(directory, tmp_path, capsys):
    run = run_on(directory, tmp_path, init="run", **VERSION_2)
    answerer = Answerer(run, AnswerConfig(null_score_diff_threshold=1e9))
    typed_questions.interact(answerer, ["", "b c", "d x e", "", "a", "a", "", " ", "", "b x\n", "\n", "a", "\n", "c"])
    out = capsys.readouterr().out
    assert out.count("probability") == 3
    assert out.splitlines()[2].split()[-1] == "x"
    assert out.count("threshold 1e+09: x") == 3


def test_typed_lines_are_read_whatever_the_locale_and_their_bytes(directory, tmp_path, capsys, monkeypatch):
    run = run_on(directory, tmp_path, init="run")
    typed = io.TextIOWrapper(io.BytesIO(b"b c\xff x\n\nd \xc3\xa9\n"), encoding="ascii")
    monkeypatch.setattr("sys.stdin", typed)
    typed_questions.interact(Answerer(run, AnswerConfig()))
    assert capsys.readouterr().out.count("probability") == 1


def test_what_can_not_be_done_is_refused(directory, tmp_path):
    assert_refused("only 32", run_on, directory, tmp_path, "dev1.json", max_seq_length=40)
    for changes in ({"max_query_length": 30}, {"n_best_size": 0}, {"max_answer_length": 0}, {"answer_text": "exact"}):
        assert_refused(f"--{next(iter(changes))}(=| is)", run_on, directory, tmp_path, **changes)


def test_the_program_trains_on_files_in_turn_predicts_and_answers_what_is_typed(directory, tmp_path):
    out = tmp_path / "out"
    command = [
        *("run_squad.py", "--do_predict", "--version_2_with_negative", "--max_query_length=4", "--num_workers=1"),
        *(f"--output_dir={out}", f"--predict_file={directory / 'dev2.json'}", f"--max_seq_length={LENGTH}"),
    ]
    training = [
        *("--do_train", "--train_batch_size=8"),
        f"--train_file={directory / 'train2.json'},{directory / 'train2.json'}",
        *(f"--bert_config_file={directory / 'config.json'}", f"--vocab_file={directory / 'vocab.txt'}"),
        *("--num_train_epochs=1", "--num_train_steps=3", "--learning_rate=1e-2", "--interactive"),
        *("--do_export", f"--export_dir={tmp_path / 'exported'}"),
    ]
    output = programs.run(*command, *training, typed="b c x\n\na\n")
    assert "probability" in output
    made = {path.name for path in out.iterdir()}
    assert made >= {"bert_config.json", "vocab.txt", "run.json", "checkpoint", "model.ckpt-3.index", "stage_1"}
    assert made >= {"predictions.json", "nbest_predictions.json", "null_odds.json", "tuned.json"}
    assert {"eval_results.json", "eval_results.txt"} <= made
    assert f"variables from {out / 'stage_1' / 'model.ckpt-3'}" in output
    recorded = {"version_2_with_negative": True, "do_lower_case": True, "doc_stride": 128}
    assert json.loads((out / "run.json").read_text())["resume_settings"].items() >= recorded.items()
    assert (tmp_path / "exported" / "saved_model.pb").exists()

    shutil.rmtree(out / "stage_1")  # no longer needed
    run = run_on(directory, out, train_files=["train2.json"] * 2, **VERSION_2)
    assert_refused("began with other settings", train, run)
    assert not (out / "stage_1").exists()


def test_a_member_of_an_ensemble_is_known_by_its_weights(tmp_path):
    names = [squad_task._describe_member(str(tmp_path))]  # a directory without weights
    for weight in (1.0, 2.0):
        saver.CheckpointSaver(str(tmp_path), 1).save(1, {"x": np.float32(weight)})
        names.append(squad_task._describe_member(str(tmp_path)))
    assert len(set(names)) == 3
    assert names[0] == str(tmp_path)


def test_answers_are_not_computed_if_they_cannot_be_evaluated(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "official"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "official", None)  # as if it were not installed
    content = articles(1)
    known = SquadTask(SquadConfig(), [], write_file(tmp_path, "known.json", content))
    with pytest.raises(InputError, match=r"tf-models-official is not installed.*pip install tf-models-official"):
        known.examples(PREDICT_SPLIT)
    del content["data"][0]["paragraphs"][0]["qas"][0]["answers"]
    SquadTask(SquadConfig(), [], write_file(tmp_path, "unknown.json", content)).examples(PREDICT_SPLIT)


def test_questions_that_are_all_without_answers_are_not_trained_on():
    task = SquadTask(SquadConfig(version_2_with_negative=True))
    example = make_example("1", "Who?", "He sat.", is_impossible=True)
    assert_refused("--train_file: no question has an answer", task.check_training_set, [example])
