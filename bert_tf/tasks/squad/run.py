"""A SQuAD run: train on each file in turn, answer a file, evaluate, and keep what was tuned.

What a finished run's folder holds is said in `run_squad.py`.
"""

import os
from collections.abc import Mapping
from typing import Any

from bert_tf.checkpoints import saver
from bert_tf.finetuning import reports
from bert_tf.finetuning.hyperparameters import Hyperparameters
from bert_tf.finetuning.run import FinetuningRun
from bert_tf.runtime import files
from bert_tf.runtime.files import InputError
from bert_tf.runtime.program import say
from bert_tf.tasks.squad.answerer import Answerer, AnswerPlan, choose_null_threshold
from bert_tf.tasks.squad.ensemble import merge_n_best, read_n_best, read_null_odds
from bert_tf.tasks.squad.evaluation import (
    NULL_THRESHOLD_FILE,
    THRESHOLD_KEY,
    evaluate,
    evaluate_v1,
    evaluate_v2,
    has_answers,
    official_evaluator,
    read_answers,
    read_null_threshold,
    write_null_threshold,
)
from bert_tf.tasks.squad.predictions import SquadPredictions
from bert_tf.tasks.squad.task import PREDICT_SPLIT, SquadTask

PREDICTIONS_FILE = "predictions.json"
N_BEST_FILE = "nbest_predictions.json"
NULL_ODDS_FILE = "null_odds.json"


def train(
    run: FinetuningRun,
    hyperparameters: Hyperparameters,
    warmup_proportion: float,
    flags: Mapping[str, Any],
    allow_changes: bool = False,
) -> None:
    """Trains on each file in turn, every time with the whole recipe, from the weights that the file before has left.

    So the paper trains on TriviaQA first, then on SQuAD (section 4.2). The checkpoints of all files but the last go
    into folders of their own, `stage_1`, `stage_2`... As in the release, questions are counted for the steps, not
    windows.

    Args:
      run: its task names the files; its training config the folder.
      hyperparameters: for each file.
      warmup_proportion: share of each file's steps in which the learning rate rises.
      flags: for the record.
      allow_changes: resume a run though its settings have changed.
    """
    splits = run.task.train_splits
    output_dir = run.training_config.output_dir
    folders = [os.path.join(output_dir, f"stage_{number}") for number in range(1, len(splits))] + [output_dir]
    begun = [bool(saver.latest_checkpoint(folder)) for folder in folders]
    init_checkpoint = run.init_checkpoint
    for number, (split, folder) in enumerate(zip(splits, folders, strict=True), start=1):
        if any(begun[number:]):  # what this file has left is no longer needed
            continue
        num_examples = len(run.examples(split))
        config = hyperparameters.applied_to(run.training_config, folder, num_examples, warmup_proportion)
        stage = run.with_model(run.config, config, init_checkpoint, run.asked_bilstm)
        stage.record(flags, num_examples, allow_changes)
        stage.train(run.features(split))
        init_checkpoint = folder


def check_evaluator(task: SquadTask) -> None:
    """Raises an InputError if the answers will have to be evaluated but can't be; best called before any work."""
    if has_answers(task.articles):
        official_evaluator(task.config.version_2_with_negative)


def predict(run: FinetuningRun, plan: AnswerPlan) -> dict[str, float]:
    """Answers a file, writes the release's files, and evaluates the answers if the right ones are known.

    Args:
      run: its task names the file; its folder gets the results.
      plan: with what.

    Returns:
      The scores; nothing if the right answers aren't known.
    """
    output_dir = run.training_config.output_dir
    examples = run.examples(PREDICT_SPLIT)
    if plan.merges_lists:
        predictions, model, threshold = _merge(run, plan)
    else:
        answerer = Answerer(run, plan)
        model, threshold = answerer.model, answerer.null_score_diff_threshold
        windows = run.features(PREDICT_SPLIT)
        outputs = answerer.outputs(windows)
        predictions = answerer.answer(examples, windows, outputs)
        run.task.report_answer_texts(examples, windows, outputs, run.tokenizer, predictions, threshold)
    for line in predictions.report():
        say(line)
    is_version_2 = run.task.config.version_2_with_negative
    paths = [os.path.join(output_dir, name) for name in (PREDICTIONS_FILE, N_BEST_FILE, NULL_ODDS_FILE)]
    paths = paths[: 2 + is_version_2]
    predictions.write(*paths)
    say(f"Wrote {', '.join(paths)}.")
    if not has_answers(run.task.articles):
        say("The file to be answered holds no right answers, so there is nothing to evaluate.")
        return {}
    results = evaluate(run.task.articles, predictions, is_version_2)
    shown = results | ({THRESHOLD_KEY: threshold} if is_version_2 else {}) | {"model": model}
    reports.report_evaluation(output_dir, "", shown, None)
    if is_version_2:
        _keep_threshold(os.path.join(output_dir, NULL_THRESHOLD_FILE), results, plan, model)
    return results


def evaluate_file(task: SquadTask, path: str, output_dir: str) -> dict[str, float]:
    """Evaluates the answers that any system has written as `predictions.json`."""
    judge = evaluate_v2 if task.config.version_2_with_negative else evaluate_v1
    results = judge(task.articles, read_answers(path))
    reports.report_evaluation(output_dir, "", results, None)
    return results


def _merge(run: FinetuningRun, plan: AnswerPlan) -> tuple[SquadPredictions, str, float]:
    """The answers of several finished runs' n-best lists, what they come from, and the threshold that is used."""
    is_version_2 = run.task.config.version_2_with_negative
    model = f"{plan.ensemble_method} of {', '.join(plan.ensemble_dirs)}"
    threshold = choose_null_threshold(plan, [run.training_config.output_dir], model)
    asked = {example.qas_id for example in run.examples(PREDICT_SPLIT)}
    predictions = merge_n_best(
        [_read_lists(folder, asked) for folder in plan.ensemble_dirs],
        run.task.config.n_best_size,
        [read_null_odds(os.path.join(folder, NULL_ODDS_FILE)) for folder in plan.ensemble_dirs if is_version_2],
        threshold,
    )
    return predictions, model, threshold


def _read_lists(folder: str, asked: set[str]) -> dict[str, list[dict[str, Any]]]:
    """The n-best lists that a finished run has made for the file that is to be answered."""
    path = os.path.join(folder, N_BEST_FILE)
    n_best = read_n_best(path)
    if different := sorted(asked ^ n_best.keys()):
        raise InputError(
            f"--ensemble_dirs: {path} was made for another file than --predict_file: question {different[0]!r} (one of "
            f"{len(different)}) stands only in one of them. Answer this file with every run first."
        )
    return n_best


def _keep_threshold(path: str, results: Mapping[str, float], plan: AnswerPlan, model: str) -> None:
    """Stores the tuned threshold; one that was tuned for this model before stays, unless it is asked for."""
    is_tuned = files.exists(path) and read_null_threshold(path)[1] == model
    if plan.tune_null_threshold or (plan.tune_null_threshold is None and not is_tuned):
        write_null_threshold(path, results, model)
        say(f"Wrote {path}: from now on the threshold is {results['best_f1_thresh']}.")
