"""Errors as callers in Python expect them, from code that programs run too."""

import contextlib
import re
from collections.abc import Iterator

from bert_tf.runtime.errors import InputError
from bert_tf.training.errors import Preempted

# The arguments that are not named as the flags are.
_ARGUMENTS = {
    "train_batch_size": "batch_size",
    "num_train_epochs": "epochs",
    "random_seed": "seed",
    "num_warmup_steps": "warmup_proportion",
    "dev_fraction": "validation_split",
    "init_checkpoint": "from_pretrained()",
    "export_dtype": "dtype",
    "export_quantize": "quantize",
    "export_litert": "litert",
    "export_onnx": "onnx",
    "input_file": "records",
    "eval_input_file": "validation_data",
    "allow_changed_settings": "allow_changed_settings=True",
    "reset_head": "reset_head=True",
    "problem=regression": "a Regressor",
    "problem": "the problem",
}
_FLAG = re.compile(r"(?<![\w'\"-])--(\w+)(?:=(\w+(?:\.\w+)*))?")
# What a resumed run says of its settings, under the names of flags.
_CHANGED = re.compile(r"^  (train_batch_size)(?= was )", re.MULTILINE)


@contextlib.contextmanager
def errors_in_python() -> Iterator[None]:
    """Lets messages name arguments in place of flags, and Ctrl-C end training as it ends other code.

    Raises:
      KeyboardInterrupt: after Ctrl-C in training, when the state has been saved.
    """
    try:
        yield
    except InputError as error:
        error.args = (named(str(error)),)
        raise
    except Preempted as stop:
        if stop.by_keyboard:
            raise KeyboardInterrupt(
                f"Training was stopped after step {stop.step}, which is saved. Call fit() again to go on."
            ) from None
        raise


def named(message: str) -> str:
    """A message with the names of arguments: "--dtype=float32" becomes "dtype='float32'"."""

    def argument(found: re.Match[str]) -> str:
        name, value = found.groups()
        if f"{name}={value}" in _ARGUMENTS:
            return _ARGUMENTS[f"{name}={value}"]
        name = _ARGUMENTS.get(name, name)
        if value is None:
            return name
        return f"{name}={value}" if value[0].isdecimal() else f"{name}={value!r}"

    return _CHANGED.sub(lambda found: f"  {_ARGUMENTS[found[1]]}", _FLAG.sub(argument, message))
