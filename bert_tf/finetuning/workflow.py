"""All steps of fine-tuning: prepare the data, train (once, or in trials), evaluate, predict."""

import dataclasses
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from bert_tf.checkpoints import run_directory
from bert_tf.finetuning import reports, trials
from bert_tf.finetuning.hyperparameters import Hyperparameters
from bert_tf.finetuning.run import FinetuningRun
from bert_tf.finetuning.selection import DevSelection, SelectionConfig
from bert_tf.finetuning.task import ModelOutputs, ReportingTask
from bert_tf.finetuning.trials import TrialTable
from bert_tf.runtime import files
from bert_tf.runtime.files import InputError
from bert_tf.runtime.program import say
from bert_tf.training.interface import PeriodicEvaluation


@dataclasses.dataclass(frozen=True)
class WorkflowConfig:
    """The steps of fine-tuning to carry out, and their settings.

    Attributes:
      do_train: train.
      do_eval: evaluate on the dev splits.
      do_predict: predict the test splits.
      candidates: the hyperparameters; if there are several, each is tried and the best is used.
      warmup_proportion: the share of the steps in which the learning rate rises.
      num_train_steps: if it isn't 0, training ends after this number of steps, whatever the numbers of epochs say.
      selection: how the dev set is used during training.
      predict_batch_size: the number of examples that each replica predicts at a time.
      original_format: write test_results.tsv without a header.
      allow_changed_settings: resume a run although its settings have changed.
      flags: the program's flags, which are recorded in the folder.
    """

    do_train: bool
    do_eval: bool
    do_predict: bool
    candidates: Sequence[Hyperparameters]
    warmup_proportion: float = 0.1
    num_train_steps: int = 0
    selection: SelectionConfig = dataclasses.field(default_factory=SelectionConfig)
    predict_batch_size: int = 8
    original_format: bool = False
    allow_changed_settings: bool = False
    flags: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (self.do_train or self.do_eval or self.do_predict):
            raise InputError("--do_train, --do_eval and --do_predict are missing. Pass one or more of them.")

    @property
    def flags_for_one_worker(self) -> list[str]:
        """The given flags that need the model's predictions, which only one worker can compute."""
        given = {
            "--do_eval": self.do_eval,
            "--do_predict": self.do_predict,
            "--use_best_checkpoint": self.selection.use_best_checkpoint,
            "--early_stopping_patience": self.selection.early_stopping_patience,
            "--sweep and --num_restarts": len(self.candidates) > 1,
        }
        return [flag for flag, is_given in given.items() if is_given]

    @property
    def evaluates_while_training(self) -> bool:
        """Whether the dev set is needed during training."""
        selects = (
            self.selection.use_best_checkpoint or self.selection.early_stopping_patience or len(self.candidates) > 1
        )
        return self.do_train and bool(self.do_eval or selects)


def prepare(run: FinetuningRun, config: WorkflowConfig) -> None:
    """Checks the settings, and reads, checks and tokenizes all data that will be needed; see `FinetuningRun.prepare`.

    Raises:
      InputError: if the data can't be used, or several workers would have to evaluate or predict.
    """
    run.distribution_config.check_one_worker(*config.flags_for_one_worker)
    task: ReportingTask = run.task
    splits: list[str] = []
    if config.do_train:
        run.prepare(["train"])
        task.check_training_set(run.examples("train"))
    if config.do_eval:
        splits += task.dev_splits
    elif config.evaluates_while_training:
        splits += task.dev_splits[:1]
    if config.do_predict:
        splits += task.test_splits
    run.prepare(splits)


def carry_out(run: FinetuningRun, config: WorkflowConfig) -> dict[str, dict]:
    """Trains, evaluates and predicts as the config says, in the folder of a run.

    Args:
      run: the run; its training config has the folder and all settings that the candidates don't have.
      config: the steps to carry out.

    Returns:
      "eval": split -> results, also those of test splits with labels; "predict": split -> the model's outputs.

    Raises:
      InputError: if the data can't be used, or the folder holds another run.
    """
    output_dir = run.training_config.output_dir
    if not config.do_train:
        selected_run = _in_folder(run, run_directory.folder_of_model(output_dir))
        selected_run.check_model(config.allow_changed_settings)
    prepare(run, config)
    if config.do_train:
        selected_run = _train(run, config, output_dir)
    results: dict[str, dict] = {"eval": {}, "predict": {}}
    if config.do_eval:
        results["eval"] = _evaluate(selected_run, config, output_dir)
    if config.do_predict:
        results["predict"], scored = _predict(selected_run, config, output_dir)
        results["eval"] |= scored
    return results


def _in_folder(run: FinetuningRun, folder: str) -> FinetuningRun:
    """Returns a run with the checkpoints of another folder."""
    return run.with_training(run.training_config.replace(output_dir=folder))


def _train(run: FinetuningRun, config: WorkflowConfig, output_dir: str) -> FinetuningRun:
    """Trains every candidate, and returns the run that is evaluated."""
    task: ReportingTask = run.task
    features = run.features("train")

    def train(hyperparameters: Hyperparameters, folder: str) -> DevSelection:
        training_config = hyperparameters.applied_to(
            run.training_config,
            folder,
            len(features),
            warmup_proportion=config.warmup_proportion,
            num_train_steps=config.num_train_steps,
        )
        trial = run.with_training(training_config)
        trial.record(config.flags, "train", config.allow_changed_settings)
        # Only after `record`: if it refuses the folder, the classes of the run in it must not be replaced.
        for place in {output_dir, folder}:  # of a trial: estimators open its own folder
            files.write_json(os.path.join(place, run_directory.LABELS_FILE), task.labels and list(task.labels))
        selection = DevSelection(trial, task.dev_splits[0], config.selection)
        if not config.evaluates_while_training:
            trial.train(features)
            return selection
        every = config.selection.eval_steps(training_config, len(features))
        trial.train(features, PeriodicEvaluation(selection.evaluate, every, selection.should_stop, table=False))
        reports.report_training(folder, len(features) / training_config.train_batch_size, task.selection_metric)
        return selection

    def train_and_score(hyperparameters: Hyperparameters, folder: str) -> dict[str, float]:
        start = time.perf_counter()
        line = train(hyperparameters, folder).selected_evaluation()
        scores = {name: value for name, value in line.items() if name not in ("kind", "time")}
        return scores | {"seconds": round(time.perf_counter() - start, 1)}

    if len(config.candidates) == 1:
        return train(config.candidates[0], output_dir).run
    table = TrialTable(output_dir, task.selection_metric)
    varied = {"num_train_steps", "num_warmup_steps", *Hyperparameters.__struct_fields__}
    training_settings = run.training_config.resume_settings(run.strategy)
    resume_settings = {
        **run.resume_settings(),
        **{name: value for name, value in training_settings.items() if name not in varied},
        "bert_config": run.config.to_dict(),
        "warmup_proportion": config.warmup_proportion,
        "num_train_steps": config.num_train_steps,
        "selection": dataclasses.asdict(config.selection) | {"metric": task.selection_metric},
    }
    best = trials.run_trials(config.candidates, table, resume_settings, train_and_score, config.allow_changed_settings)
    return _in_folder(run, table.folder(best["trial"]))


def _evaluate(run: FinetuningRun, config: WorkflowConfig, output_dir: str) -> dict[str, dict]:
    """Evaluates every dev split; the results of the first one are written into eval_results.txt, as in the release."""
    task: ReportingTask = run.task
    global_step = run.restore()
    results: dict[str, dict] = {}
    for split in task.dev_splits:
        features, batch_size = run.features(split), config.selection.batch_size
        outputs = run.predict(features, batch_size, split)
        results[split] = {"global_step": global_step, **task.results(outputs, features, batch_size)}
        suffix = "" if split == task.dev_splits[0] else f"_{split}"
        reports.report_evaluation(output_dir, suffix, results[split], task.confusion(outputs, features))
    return results


def _predict(
    run: FinetuningRun, config: WorkflowConfig, output_dir: str
) -> tuple[dict[str, ModelOutputs], dict[str, dict]]:
    """Predicts every test split, writes the task's files, and returns the outputs and, with labels, the scores."""
    task: ReportingTask = run.task
    global_step = run.restore()
    outputs: dict[str, ModelOutputs] = {}
    results: dict[str, dict] = {}
    for split in task.test_splits:
        features, batch_size = run.features(split), config.predict_batch_size
        outputs[split] = run.predict(features, batch_size, split)
        for path in task.write_predictions(
            output_dir, split, run.examples(split), outputs[split], features, original_format=config.original_format
        ):
            say(f"Wrote {path}.")
        if task.has_labels(run.examples(split)):
            results[split] = {"global_step": global_step, **task.results(outputs[split], features, batch_size)}
            confusion = task.confusion(outputs[split], features)
            name = task.output_names.get(split, split)
            reports.report_evaluation(output_dir, f"_{name}", results[split], confusion)
    return outputs, results
