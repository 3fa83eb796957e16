"""All steps of fine-tuning: prepare the data, train (one run or several trials), evaluate, predict."""

import itertools
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

from keras.callbacks import Callback

from bert_tf.checkpoints import run_directory, saver
from bert_tf.config import BertConfig
from bert_tf.data_report import findings
from bert_tf.data_report.rows import shared_rows
from bert_tf.distribution import devices
from bert_tf.finetuning import reports, training_batches, trials
from bert_tf.finetuning.finetuning_config import FinetuningConfig
from bert_tf.finetuning.run import FinetuningRun
from bert_tf.finetuning.selection import DevSelection
from bert_tf.finetuning.task import Task
from bert_tf.finetuning.trials import TrialTable
from bert_tf.runtime import dry_run
from bert_tf.runtime.errors import InputError
from bert_tf.text import Tokenizer
from bert_tf.training.callbacks import Callbacks
from bert_tf.training.hooks import Hook, PeriodicEvaluation
from bert_tf.training.loop import train


def finetune(
    task: Task,
    config: FinetuningConfig,
    model: tuple[BertConfig, Tokenizer] | None = None,
    run: FinetuningRun | None = None,
    callbacks: Sequence[Callback] = (),
) -> dict[str, dict[str, Any]]:
    """Trains, evaluates and predicts, as selected by the settings.

    Args:
      task: the task and its data.
      config: the settings. If they define several trials, all are trained, and the best trial is used.
      model: the encoder's config and the tokenizer; None to read them from the files in the settings.
      run: another run of the task, to share its data.
      callbacks: Keras callbacks for the last training.

    Returns:
      "eval": maps splits to results, including test splits with labels; "predict": maps splits to the model's outputs.

    Raises:
      InputError: if the data can't be used, or the directory contains another run.
    """
    run = FinetuningRun(task, config, model) if run is None else run.with_settings(config)
    output_dir = config.training.output_dir
    if not config.do_train:
        run = run.with_settings(config.in_directory(run_directory.directory_of_model(output_dir)))
        run.check_model()
    prepare(run)
    if config.do_eval or config.evaluates_while_training:
        devices.per_replica_batch_size(config.eval_batch_size, run.strategy, "--eval_batch_size")
    if config.do_predict:
        devices.per_replica_batch_size(config.predict_batch_size, run.strategy, "--predict_batch_size")
    if config.do_train:
        candidates = config.candidates()
        run = _train(run, candidates[0], callbacks) if len(candidates) == 1 else _run_trials(run, candidates)
        dry_run.end()  # the other steps need the weights
    with dry_run.step():
        return task.finish(run, output_dir)
    return {"eval": {}, "predict": {}}


def prepare(run: FinetuningRun) -> None:
    """Checks the settings, and reads, checks and tokenizes all data that is needed. See `TaskData.features`.

    Raises:
      InputError: if the data can't be used, or several workers would have to evaluate or predict.
    """
    task, config = run.task, run.settings
    config.distribution.check_one_worker(*config.flags_for_one_worker)
    splits: list[str] = []
    if task.tunes and config.do_train and not config.do_eval:
        raise InputError("--label_threshold=tune and --calibrate need a dev set. Pass --do_eval.")
    if config.explain and not task.explains:
        raise InputError(f"--explain: predictions of {task.name} have no explanations. Omit --explain.")
    if config.do_train:
        splits += task.train_splits
    if config.do_eval:
        splits += task.dev_splits
    elif config.evaluates_while_training:
        splits += task.dev_splits[:1]
    if config.do_predict:
        splits += task.test_splits
    # All files are read first, so errors in any file are reported before tokenizing starts.
    examples = {split: run.task.split(split) for split in splits}
    findings.report(shared_rows(examples))
    for split in task.train_splits if config.do_train else ():
        task.check_training_set(examples[split])
        smallest = min(trial.training.train_batch_size for trial in config.candidates())
        if smallest < task.min_batch_size(examples[split]):
            problem = "the other examples of a batch are the negatives of a pair"
            raise InputError(f"--train_batch_size={smallest}: {problem}. Use a larger batch.")
    for split in splits:
        run.data.features(split)


def _train(run: FinetuningRun, settings: FinetuningConfig, callbacks: Sequence[Callback] = ()) -> FinetuningRun:
    """Trains on each training split in turn, and returns the run of the last split.

    Each training starts from the weights of the previous one. The paper trains on TriviaQA first and then on SQuAD
    (section 4.2). The checkpoints of all splits except the last are in the directories `stage_1`, `stage_2`...
    """
    task = run.task
    for split, stage in _unfinished_stages(task.train_splits, settings):
        output_dir, is_last = stage.training.output_dir, split == task.train_splits[-1]
        is_evaluated = is_last and settings.evaluates_while_training
        num_examples = _num_examples(run, split)
        stage_run = run.with_settings(stage.replace(training=stage.for_steps(num_examples)), split=split)
        stage_run.check_workers()
        stage_run.check_directory()
        eval_steps = settings.selection.eval_steps(stage_run.training_config, num_examples)
        hooks: list[Hook] = []
        if is_evaluated:
            selection = DevSelection(stage_run)
            hooks.append(PeriodicEvaluation(selection.evaluate, eval_steps, selection.stops, prints_table=False))
        if is_last and callbacks:
            hooks.append(Callbacks(callbacks, eval_steps))
        data = training_batches.training_data(stage_run)
        stage_run.announce()
        train(stage_run, data, hooks)
        if is_evaluated:
            epoch = num_examples / settings.training.train_batch_size
            reports.report_training(output_dir, epoch, task.metric_that_selects)
    return stage_run


def _unfinished_stages(splits: Sequence[str], settings: FinetuningConfig) -> Iterator[tuple[str, FinetuningConfig]]:
    """Yields the splits that are not finished, with their settings. A split is finished if a later one has begun."""
    output_dir = settings.training.output_dir
    directories = [os.path.join(output_dir, f"stage_{number}") for number in range(1, len(splits))] + [output_dir]
    for number, (split, directory) in enumerate(zip(splits, directories, strict=True)):
        if any(map(saver.latest_checkpoint, directories[number + 1 :])):
            continue
        # A dry run trains no stage, so every stage starts from --init_checkpoint.
        if number and saver.latest_checkpoint(directories[number - 1]):
            settings = settings.starting_from(directories[number - 1], directory)
        else:
            settings = settings.in_directory(directory)
        yield split, settings


def _num_examples(run: FinetuningRun, split: str) -> int:
    """Returns the number of examples that an epoch counts."""
    return len(run.task.split(split) if run.task.counts_examples else run.data.features(split))


def _run_trials(run: FinetuningRun, candidates: list[FinetuningConfig]) -> FinetuningRun:
    """Trains every candidate in its own directory, and returns the run of the best candidate.

    A dry run checks the settings of all candidates, and trains only the first one that has not finished yet.
    """
    task, config = run.task, run.settings
    output_dir = config.training.output_dir

    # All settings are checked first, so no trial ends with an error after others have trained.
    num_steps = 0
    for candidate, split in itertools.product(candidates, task.train_splits):
        training = candidate.for_steps(_num_examples(run, split))
        training.check_batch(run.strategy, "sweep_batch_sizes" if config.trials.sweep else "train_batch_size")
        num_steps += training.num_train_steps

    def train_candidate(candidate: FinetuningConfig) -> dict[str, float]:
        start = time.perf_counter()
        trial = _train(run, candidate)
        dry_run.end(f"All {len(candidates)} trials have {num_steps:,} steps. The numbers above are for one trial.")
        task.write_settings(output_dir, run.config, config.max_seq_length)
        line = DevSelection(trial).selected_evaluation()
        scores = {name: value for name, value in line.items() if name not in ("kind", "time")}
        return scores | {"seconds": round(time.perf_counter() - start, 1)}

    varied = {"num_train_steps", "num_warmup_steps", *config.hyperparameters}
    training_settings = config.training.resume_settings(run.strategy) | {"jit_compile": run.compilation.value}
    resume_settings = {
        **run.data_settings(),
        **{name: value for name, value in training_settings.items() if name not in varied},
        "bert_config": run.config.to_dict(),
        "warmup_proportion": config.warmup_proportion,
        "num_train_steps": config.num_train_steps,
        "selection": config.selection.to_dict() | {"metric": task.metric_that_selects},
    }
    table = TrialTable(output_dir, task.metric_that_selects)
    best = trials.run_trials(candidates, table, resume_settings, train_candidate)
    return run.with_settings(config.in_directory(table.directory(best)))
