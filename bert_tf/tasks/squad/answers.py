"""Answers a file or typed questions, and evaluates the answers. `run_squad.py` lists the files that are written."""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from bert_tf.checkpoints import run_directory, saver
from bert_tf.finetuning import reports
from bert_tf.finetuning.run import FinetuningRun
from bert_tf.runtime import files, json_files, reporting
from bert_tf.runtime.files import InputError
from bert_tf.runtime.program import say, typed_lines
from bert_tf.tasks.squad.answerer import (
    NULL_THRESHOLD_FILE,
    THRESHOLD_KEY,
    Answerer,
    find_null_threshold,
    read_null_threshold,
)
from bert_tf.tasks.squad.evaluation import evaluate, evaluate_v1, evaluate_v2, has_answers
from bert_tf.tasks.squad.examples import make_example
from bert_tf.tasks.squad.predictions import (
    SquadPredictions,
    merge_n_best,
    read_answers,
    read_n_best,
)
from bert_tf.tasks.squad.rules import PREDICT_SPLIT, AnswerConfig

if TYPE_CHECKING:
    from bert_tf.tasks.squad.task import SquadTask

PREDICTIONS_FILE = "predictions.json"
N_BEST_FILE = "nbest_predictions.json"
NULL_ODDS_FILE = "null_odds.json"
# The number of answers to a typed question that are shown.
_SHOWN_ANSWERS = 5


def predict(run: FinetuningRun, config: AnswerConfig, output_dir: str) -> dict[str, float]:
    """Answers a file, writes the release's files, and evaluates the answers if the right ones are known.

    Args:
      run: its task names the file.
      config: the models that answer, and their settings.
      output_dir: the directory for the results.

    Returns:
      The scores; empty if the right answers aren't known.
    """
    examples = run.examples(PREDICT_SPLIT)
    if config.merges_lists:
        predictions, model, threshold = _merge(run, config)
    else:
        answerer = Answerer(run, config)
        model, threshold = answerer.model, answerer.null_score_diff_threshold
        predictions = answerer.answer(examples, run.features(PREDICT_SPLIT))
    for line in predictions.report():
        say(line)
    is_version_2 = run.task.config.version_2_with_negative
    paths = [os.path.join(output_dir, name) for name in (PREDICTIONS_FILE, N_BEST_FILE, NULL_ODDS_FILE)]
    paths = paths[: 2 + is_version_2]
    predictions.write(*paths)
    say(f"Wrote {', '.join(paths)}.")
    if not has_answers(run.task.articles):
        say("The file to be answered has no right answers, so there is nothing to evaluate.")
        return {}
    results = evaluate(run.task.articles, predictions, is_version_2)
    shown = results | ({THRESHOLD_KEY: threshold} if is_version_2 else {})
    reports.report_evaluation(output_dir, "", shown, None, model)
    if is_version_2:
        _keep_threshold(output_dir, results, config, model)
    return results


def interact(answerer: Answerer, lines: Iterable[str] | None = None) -> None:
    """Reads typed paragraphs with their questions, and prints the best answers to standard output.

    A paragraph ends at an empty line. Then every line is a question, until an empty line ends the questions of this
    paragraph. More empty lines before a paragraph are ignored.

    Args:
      answerer: gives the answers.
      lines: the typed lines; the standard input by default.
    """
    typed = typed_lines() if lines is None else (line.rstrip("\r\n") for line in lines)
    while True:
        say("Paragraph (an empty line ends it; the end of the input, or Ctrl-D, ends the program):")
        first = next((line for line in typed if line.strip()), None)
        if first is None:
            return
        context = "\n".join([first, *_up_to_empty_line(typed)])
        say("Questions (an empty line begins another paragraph):")
        for question in _up_to_empty_line(typed):
            print("\n".join(answer_lines(answerer, context, question)), flush=True)


def _up_to_empty_line(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        if not line.strip():
            return
        yield line


def answer_lines(answerer: Answerer, context: str, question: str) -> list[str]:
    """A table of the best answers: probability among the n best, score (sum of the two logits), text.

    With SQuAD 2.0 a line follows with the odds for no answer, the threshold, and the resulting answer.
    """
    task, run = answerer.run.task, answerer.run
    example = make_example("typed", question, context)
    windows = task.featurize([example], run.tokenizer, run.settings.max_seq_length)
    predictions = answerer.answer([example], windows, shown=False)
    rows = [
        {
            "probability": entry["probability"],
            "score": entry["start_logit"] + entry["end_logit"],
            "answer": entry["text"] or "(none)",
        }
        for entry in predictions.n_best["typed"][:_SHOWN_ANSWERS]
    ]
    shown = [reporting.table(rows)]
    if task.config.version_2_with_negative:
        odds, threshold = predictions.null_odds["typed"], answerer.null_score_diff_threshold
        verdict = predictions.answers["typed"] or "(none)"
        shown.append(f"odds for no answer {odds:.4g}, threshold {threshold:.4g}: {verdict}")
    return shown


def evaluate_file(task: "SquadTask", path: str, output_dir: str) -> dict[str, float]:
    """Evaluates a `predictions.json`, which may come from any system."""
    judge = evaluate_v2 if task.config.version_2_with_negative else evaluate_v1
    results = judge(task.articles, read_answers(path))
    reports.report_evaluation(output_dir, "", results, None)
    return results


def _merge(run: FinetuningRun, config: AnswerConfig) -> tuple[SquadPredictions, str, float]:
    """The answers from several finished runs' n-best lists, a description of the models, and the threshold."""
    is_version_2 = run.task.config.version_2_with_negative
    model = f"{config.ensemble_method} of {', '.join(map(_describe_member, config.ensemble_dirs))}"
    threshold = config.null_score_diff_threshold
    if threshold is None:
        threshold = find_null_threshold([run.training_config.output_dir], model)
    n_best = [read_n_best(os.path.join(folder, N_BEST_FILE)) for folder in config.ensemble_dirs]
    odds_files = [os.path.join(folder, NULL_ODDS_FILE) for folder in config.ensemble_dirs if is_version_2]
    odds = [json_files.read(path, "null odds", dict[str, float]) for path in odds_files]
    asked = {example.qas_id for example in run.examples(PREDICT_SPLIT)}
    for folder, values in zip(config.ensemble_dirs * 2, n_best + odds, strict=False):
        if different := sorted(asked ^ values.keys()):
            raise InputError(
                f"--ensemble_dirs: {folder} has answers to another file than --predict_file: question {different[0]!r} "
                f"(one of {len(different)}) differs. Answer this file with every run first."
            )
    return merge_n_best(n_best, run.task.config.n_best_size, odds, threshold), model, threshold


def _describe_member(folder: str) -> str:
    """A finished run's folder, and a few digits that change with its weights, for which a threshold is tuned."""
    checkpoint = saver.latest_checkpoint(run_directory.evaluated_folder(folder))
    if not checkpoint:
        return folder
    with files.open_file(f"{checkpoint}.index", "rb") as reader:  # has the checksums of the weights
        return f"{folder} ({hashlib.sha256(reader.read()).hexdigest()[:12]})"


def _keep_threshold(output_dir: str, results: Mapping[str, float], config: AnswerConfig, model: str) -> None:
    """Stores the tuned threshold; by default a threshold that was already tuned for this model is kept."""
    stored = read_null_threshold(output_dir)
    is_tuned = stored is not None and stored["model"] == model
    if config.tune_null_threshold or (config.tune_null_threshold is None and not is_tuned):
        path, threshold = os.path.join(output_dir, NULL_THRESHOLD_FILE), results["best_f1_thresh"]
        files.write_json(path, {THRESHOLD_KEY: threshold, "best_f1": results["best_f1"], "model": model})
        say(f"Wrote {path}: from now on the threshold is {threshold}.")
