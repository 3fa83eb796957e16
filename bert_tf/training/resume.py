"""The starting point of a run: its own newest checkpoint, another checkpoint, or fresh initial values."""

import dataclasses
import re
from collections.abc import Callable, Container, Mapping

import tensorflow as tf

from bert_tf import checkpoints
from bert_tf.checkpoints import CheckpointSource, output_layers, saver, variable_names
from bert_tf.optimization import OPTIONAL_STATE, SLOTS
from bert_tf.runtime.files import InputError
from bert_tf.runtime.program import say
from bert_tf.training.interface import TrainableModel


def restore_or_initialize(
    model: TrainableModel,
    state: Callable[[Container[str]], Mapping[str, tf.Variable]],
    output_dir: str,
    init_checkpoint: str | None,
    fresh_variables: str = "",
) -> checkpoints.RestoreSummary | None:
    """Restores the starting point of a run into a new model and its optimizer.

    1. If `output_dir` contains a checkpoint of this run, everything is restored, and training resumes at its step. If
       the optimizer is another one now, its means are those of the one before, which have the same meaning. What only
       one type of matrix products needs, such as float16's loss scale, is fresh or ignored if that type is another now.
    2. Otherwise the model's variables are restored from `init_checkpoint`, with the rows of an output layer matched by
       the names of their classes. Heads that are not in it stay fresh, as do the optimizer, the step, and the variables
       with names that match `fresh_variables`.
    3. If there is no `init_checkpoint` either, all variables keep their initial values.

    Args:
      model: the model.
      state: takes the names in a checkpoint of the run, and returns all variables to restore, by their names in it.
      output_dir: the run's folder.
      init_checkpoint: the checkpoint of case 2, or None.
      fresh_variables: a pattern of names; "" matches none.

    Returns:
      Which variables were restored; None in the third case.

    Raises:
      InputError: if the checkpoint doesn't fit the model.
    """
    own = saver.latest_checkpoint(output_dir)
    if own:
        source = checkpoints.open_checkpoint(own, "--output_dir")
        leave_out_unused_pooler(model, source)
        variables = state(source.shapes)
        source = _with_slots_of(variables, source)
        return checkpoints.restore(
            variables, source, may_be_fresh=OPTIONAL_STATE, may_be_ignored=OPTIONAL_STATE, flag_name="--output_dir"
        )
    if init_checkpoint:
        source = checkpoints.without(checkpoints.open_checkpoint(init_checkpoint), fresh_variables)
        leave_out_unused_pooler(model, source)
        variables = checkpoints.named_variables(model.variables)
        source = output_layers.with_classes(source, variables, model.classes)
        may_be_fresh = f"{variable_names.ADDED_BY_FINE_TUNING}|{fresh_variables}"
        is_frozen = any(v.path.startswith(checkpoints.POOLER) and not v.trainable for v in model.variables)
        if not checkpoints.has_pooler(source) and not is_frozen:
            may_be_fresh += f"|{checkpoints.POOLER}.*"
        return checkpoints.restore(variables, source, may_be_fresh=may_be_fresh)
    leave_out_unused_pooler(model, None)
    return None


def leave_out_unused_pooler(model: TrainableModel, source: CheckpointSource | None) -> None:
    """Removes the pooler from a model's variables if it is neither used nor in the model's checkpoint.

    Its values are random: no checkpoint of the run contains them, and so no later model returns them.
    """
    is_used = getattr(model, "uses_pooler", True)  # models without an encoder have none
    if not is_used and (source is None or not checkpoints.has_pooler(source)):
        model.variables = [v for v in model.variables if not v.path.startswith(checkpoints.POOLER)]


def _with_slots_of(state: Mapping[str, tf.Variable], source: CheckpointSource) -> CheckpointSource:
    """The run's checkpoint, with another optimizer's slots under the names that those of the state's optimizer have."""
    prefixes = {found.group(2) for name in state if (found := re.fullmatch(SLOTS, name))}
    stored = {
        f"{found.group(1)}/{prefix}_{found.group(3)}": name
        for name in source.shapes
        if (found := re.fullmatch(SLOTS, name)) and found.group(2) not in prefixes
        for prefix in prefixes
    }
    if not stored:
        return source
    say(f"{source.path} was trained with another optimizer, of which the means of the gradients and squares are kept.")
    shapes = {name: shape for name, shape in source.shapes.items() if name not in stored.values()}
    shapes |= {name: source.shapes[other] for name, other in stored.items()}
    return dataclasses.replace(source, shapes=shapes, read=lambda name: source.read(stored.get(name, name)))


def require_starting_point(output_dir: str, init_checkpoint: str | None) -> None:
    """Checks, before any long preparation, that the checkpoint for the start of the run exists.

    Raises:
      InputError: if `init_checkpoint` is needed, but doesn't exist.
    """
    if init_checkpoint and not saver.latest_checkpoint(output_dir):
        checkpoints.find_checkpoint(init_checkpoint)


def restore_for_evaluation(model: TrainableModel, output_dir: str, init_checkpoint: str | None) -> int:
    """Restores the weights of a run's newest checkpoint, or else those of `init_checkpoint` (see `output_layers`).

    Returns:
      The global step in the checkpoint; 0 if it contains none.

    Raises:
      InputError: if there is no checkpoint, or if a variable of the model is not in it.
    """
    own = saver.latest_checkpoint(output_dir)
    if not own and not init_checkpoint:
        raise InputError(
            f"--output_dir: {output_dir} holds no checkpoint, and no --init_checkpoint is given. Train first."
        )
    source = checkpoints.open_checkpoint(own or init_checkpoint, "--output_dir" if own else "--init_checkpoint")
    leave_out_unused_pooler(model, source)
    variables = checkpoints.named_variables(model.variables)
    if not own:
        source = output_layers.with_classes(source, variables, model.classes)
    say(str(checkpoints.restore(variables, source, may_be_fresh="")))
    return int(source.read("global_step")) if "global_step" in source.shapes else 0
