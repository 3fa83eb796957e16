"""The starting point of a run: its newest checkpoint, another checkpoint, or randomly initialised weights."""

import dataclasses
import re
from collections.abc import Callable, Container, Mapping

import tensorflow as tf

from bert_tf import checkpoints
from bert_tf.checkpoints import CheckpointSource, class_names, saver, variable_names
from bert_tf.optimization import OPTIONAL_STATE, SLOTS
from bert_tf.runtime.files import InputError
from bert_tf.runtime.messages import say
from bert_tf.training.interface import TrainableModel


def restore_or_initialize(
    model: TrainableModel,
    state: Callable[[Container[str]], Mapping[str, tf.Variable]],
    output_dir: str,
    init_checkpoint: str | None,
    new_variables: str = "",
) -> checkpoints.RestoreSummary | None:
    """Restores the starting point of a run into a new model and its optimizer.

    1. If `output_dir` contains a checkpoint of this run, everything is restored, and training resumes at its step. If
       the optimizer has changed, its first and second moments are reused. State that belongs to one dtype only, such as
       float16's loss scale, is initialised or ignored if the dtype has changed.
    2. Otherwise the model's variables are restored from `init_checkpoint`. Rows of an output layer are matched by the
       names of their classes. Variables that the checkpoint lacks or that match `new_variables`, the optimizer and the
       step keep their initial values.
    3. Without `init_checkpoint`, all variables keep their initial values.

    Args:
      model: the model.
      state: takes the names in a checkpoint of the run, and returns the variables to restore, by name.
      output_dir: the run directory.
      init_checkpoint: the checkpoint of case 2, or None.
      new_variables: a pattern of names; "" matches none.

    Returns:
      A summary of the restored variables; None in case 3.

    Raises:
      InputError: if the checkpoint doesn't match the model.
    """
    run_checkpoint = saver.latest_checkpoint(output_dir)
    if run_checkpoint:
        source = checkpoints.open_checkpoint(run_checkpoint, "--output_dir")
        leave_out_unused_pooler(model, source)
        variables = state(source.shapes)
        source = _with_slots_of(variables, source)
        return checkpoints.restore(
            variables, source, may_be_new=OPTIONAL_STATE, may_be_ignored=OPTIONAL_STATE, flag_name="--output_dir"
        )
    if init_checkpoint:
        source = checkpoints.without(checkpoints.open_checkpoint(init_checkpoint), new_variables)
        leave_out_unused_pooler(model, source)
        variables = checkpoints.named_variables(model.variables)
        source = class_names.with_classes(source, variables, model.classes, scale=model.target_scale)
        may_be_new = f"{variable_names.ADDED_BY_FINE_TUNING}|{new_variables}"
        if not checkpoints.has_pooler(source):
            may_be_new += f"|{checkpoints.POOLER}.*"
        if random := [v.path for v in model.variables if not v.trainable and v.path not in source.shapes]:
            raise InputError(
                f"--init_checkpoint: {source.path} has no {random[0]}, which is frozen and would stay random. "
                "Freeze fewer layers with --freeze_layers."
            )
        return checkpoints.restore(variables, source, may_be_new=may_be_new)
    leave_out_unused_pooler(model, None)
    return None


def leave_out_unused_pooler(model: TrainableModel, source: CheckpointSource | None) -> None:
    """Removes the pooler from a model's variables if it is neither used nor in the model's checkpoint.

    The values of such a pooler are random. It is not saved either, so models loaded from the run do not use it.
    """
    if not model.uses_pooler and (source is None or not checkpoints.has_pooler(source)):
        model.variables = [v for v in model.variables if not v.path.startswith(checkpoints.POOLER)]


def _with_slots_of(state: Mapping[str, tf.Variable], source: CheckpointSource) -> CheckpointSource:
    """Returns the run's checkpoint with the slots of another optimizer renamed for the current optimizer."""
    prefixes = {match.group(2) for name in state if (match := re.fullmatch(SLOTS, name))}
    stored = {
        f"{match.group(1)}/{prefix}_{match.group(3)}": name
        for name in source.shapes
        if (match := re.fullmatch(SLOTS, name)) and match.group(2) not in prefixes
        for prefix in prefixes
    }
    if not stored:
        return source
    say(f"{source.path} was trained with another optimizer. Its first and second moments are reused.")
    shapes = {name: shape for name, shape in source.shapes.items() if name not in stored.values()}
    shapes |= {name: source.shapes[other] for name, other in stored.items()}
    return dataclasses.replace(source, shapes=shapes, read=lambda name: source.read(stored.get(name, name)))


def evaluated_source(
    output_dir: str, init_checkpoint: str | None, output_weights: str = ""
) -> tuple[CheckpointSource, bool]:
    """Opens the checkpoint to evaluate: the newest in the run directory or, if there is none, `init_checkpoint`.

    Args:
      output_dir: the run directory.
      init_checkpoint: the other checkpoint, or None.
      output_weights: the name of the weights that only a fine-tuned model has; "" for a pre-trained model.

    Returns:
      The checkpoint, and whether it is from the run directory.

    Raises:
      InputError: if there is no checkpoint, or the model was not fine-tuned for this type of task.
    """
    run_checkpoint = saver.latest_checkpoint(output_dir)
    if not run_checkpoint and not init_checkpoint:
        raise InputError(
            f"--output_dir: {output_dir} has no checkpoint, and --init_checkpoint is not given. Train first."
        )
    flag_name = "--output_dir" if run_checkpoint else "--init_checkpoint"
    source = checkpoints.open_checkpoint(run_checkpoint or init_checkpoint, flag_name)
    if output_weights and output_weights not in source.shapes:
        raise InputError(f"{flag_name}: {source.path} was not fine-tuned for this task. Add --do_train.")
    return source, run_checkpoint is not None


def restore_for_evaluation(
    model: TrainableModel, output_dir: str, init_checkpoint: str | None, output_weights: str = ""
) -> int:
    """Restores the weights of a checkpoint. See `evaluated_source` for the arguments.

    Rows of the output layer in `init_checkpoint` are matched by the names of their classes; see `class_names`.

    Returns:
      The global step in the checkpoint; 0 if it contains none.

    Raises:
      InputError: if there is no checkpoint, or it lacks a variable of the model.
    """
    source, is_of_run = evaluated_source(output_dir, init_checkpoint, output_weights)
    if not is_of_run:
        variables = checkpoints.named_variables(model.variables)
        source = class_names.with_classes(source, variables, model.classes, scale=model.target_scale)
    return restore_weights(model, source)


def restore_weights(model: TrainableModel, source: CheckpointSource, flag_name: str = "--init_checkpoint") -> int:
    """Restores all weights of a model, without the optimizer, and prints a summary.

    Args:
      model: the model.
      source: the checkpoint.
      flag_name: the flag that gave the checkpoint, for messages.

    Returns:
      The global step in the checkpoint; 0 if it contains none.

    Raises:
      InputError: if the checkpoint lacks a variable of the model.
    """
    leave_out_unused_pooler(model, source)
    variables = checkpoints.named_variables(model.variables)
    say(str(checkpoints.restore(variables, source, may_be_new="", flag_name=flag_name)))
    return int(source.read("global_step")) if "global_step" in source.shapes else 0
