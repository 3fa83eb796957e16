"""Sends the settings and the metrics of a training run to MLflow and Weights & Biases (--report_to)."""

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from bert_tf.checkpoints import run_record
from bert_tf.runtime import files, json_files
from bert_tf.runtime.errors import InputError
from bert_tf.runtime.lazy_imports import require
from bert_tf.runtime.messages import say


class Logger(NamedTuple):
    """A run that has begun in a logging library. The functions may raise any error.

    Attributes:
      id: the id with which the run can be continued.
      log: takes metrics by name, and their step.
      end: takes "FINISHED", "FAILED" or "KILLED", as in MLflow.
    """

    id: str
    log: Callable[[Mapping[str, float], int], Any]
    end: Callable[[str], Any]


def _mlflow(name: str, settings: Mapping[str, Any], run_id: str | None) -> Logger:
    mlflow = require("mlflow", "--report_to")
    # A run that the caller has started becomes the parent.
    run = mlflow.start_run(run_id, run_name=name, nested=True)
    if not run_id:  # parameters in MLflow can't be changed
        mlflow.log_params(settings)
    return Logger(run.info.run_id, mlflow.log_metrics, mlflow.end_run)


def _wandb(name: str, settings: Mapping[str, Any], run_id: str | None) -> Logger:
    run = require("wandb", "--report_to").init(name=name, config=settings, id=run_id, resume="allow")
    return Logger(run.id, run.log, lambda status: run.finish(exit_code=int(status != "FINISHED")))


_BEGIN = {"mlflow": _mlflow, "wandb": _wandb}


class Loggers:
    """The loggers of a new or resumed training run.

    If a logger fails, a warning is printed once, and the logger gets no more metrics from this process.

    Args:
      names: the loggers, as in --report_to.
      directory: the run directory, which contains the settings.
      start: the number of steps finished by earlier processes. If it is not 0, the loggers' earlier runs are continued.

    Raises:
      InputError: if a logger can't begin a new run.
    """

    def __init__(self, names: str, directory: str, start: int) -> None:
        self._loggers: dict[str, Logger] = {}
        self._failed: set[str] = set()
        if not names:
            return
        path = os.path.join(directory, "loggers.json")
        ids = json_files.read(path, "--output_dir", dict[str, str]) if start and files.exists(path) else {}
        settings = run_record.read(directory)["flags"]
        for name in names.split(","):
            try:
                self._loggers[name] = _BEGIN[name](os.path.basename(directory.rstrip("/")), settings, ids.get(name))
            except Exception as error:
                if not start:
                    raise InputError(
                        f"--report_to={name}: {str(error).rstrip('.')}. Correct the settings of {name}."
                    ) from error
                say(f"Warning: {name} can't continue the run, so nothing is logged there ({error}).")
        files.write_json(path, ids | {name: logger.id for name, logger in self._loggers.items()})

    def log(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Logs metrics of a step as KIND/NAME. For the arguments see `MetricsLog.write`."""
        for name in self._loggers.keys() - self._failed:
            self._call(name, "log", {f"{kind}/{key}": value for key, value in values.items()}, step)

    def end(self, status: str) -> None:
        """Ends the runs with a status; see `Logger`."""
        for name in self._loggers:
            self._call(name, "end", status)

    def _call(self, name: str, function: str, *arguments: Any) -> None:
        try:
            getattr(self._loggers[name], function)(*arguments)
        except Exception as error:
            if name not in self._failed:
                say(f"Warning: {name} has failed, so metrics are no longer logged there ({error}).")
            self._failed.add(name)
