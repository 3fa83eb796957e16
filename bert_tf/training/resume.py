"""Where a run starts: from its own newest checkpoint, from another one, or afresh."""

from collections.abc import Mapping

import tensorflow as tf

from bert_tf import checkpoints
from bert_tf.checkpoints import foreign_names, saver
from bert_tf.runtime.files import InputError
from bert_tf.runtime.program import say
from bert_tf.training.contract import TrainableModel


def restore_or_initialize(
    model: TrainableModel,
    state: Mapping[str, tf.Variable],
    output_dir: str,
    init_checkpoint: str | None,
    fresh_variables: str = "",
) -> checkpoints.RestoreSummary | None:
    """Gives a model and its optimizer, which are fresh, their starting point.

    1. A checkpoint of this very run in `output_dir`: everything is restored, and training goes on from its step.
    2. Otherwise `init_checkpoint`: the model's variables are restored; heads it lacks stay fresh, and so do the
       optimizer, the step, and the variables whose names match the pattern `fresh_variables`.
    3. Otherwise the fresh initial values stay.

    Args:
      model: what is to be trained.
      state: everything that a checkpoint of the run holds, by its name there.
      output_dir: see above, as for the next two.
      init_checkpoint: see above.
      fresh_variables: see above.

    Raises:
      InputError: if the checkpoint and the model don't fit.
    """
    own = saver.latest_checkpoint(output_dir)
    if own:
        source = checkpoints.open_checkpoint(own, "--output_dir")
        return checkpoints.restore(state, source, may_be_fresh="", may_be_ignored="", flag_name="--output_dir")
    if init_checkpoint:
        source = checkpoints.without(checkpoints.open_checkpoint(init_checkpoint), fresh_variables)
        variables = checkpoints.named_variables(model.variables)
        return checkpoints.restore(
            variables, source, may_be_fresh=f"{foreign_names.ADDED_BY_FINE_TUNING}|{fresh_variables}"
        )
    return None


def require_starting_point(output_dir: str, init_checkpoint: str | None) -> None:
    """Looks for the checkpoint that will be read, so that its absence is noticed before hours of preparation.

    Raises:
      InputError: if `init_checkpoint` is needed, but isn't there.
    """
    if init_checkpoint and not saver.latest_checkpoint(output_dir):
        checkpoints.find_checkpoint(init_checkpoint)


def restore_for_evaluation(model: TrainableModel, output_dir: str, init_checkpoint: str | None) -> int:
    """Gives a model the weights of a run's newest checkpoint, or else those of `init_checkpoint`.

    Returns:
      The global step of the checkpoint; 0 if it has none.

    Raises:
      InputError: if there is neither, or it lacks a variable of the model.
    """
    own = saver.latest_checkpoint(output_dir)
    if not own and not init_checkpoint:
        raise InputError(
            f"--output_dir: {output_dir} holds no checkpoint, and no --init_checkpoint is given. Train first."
        )
    source = checkpoints.open_checkpoint(own or init_checkpoint, "--output_dir" if own else "--init_checkpoint")
    say(str(checkpoints.restore(checkpoints.named_variables(model.variables), source, may_be_fresh="")))
    return int(source.read("global_step")) if "global_step" in source.shapes else 0
