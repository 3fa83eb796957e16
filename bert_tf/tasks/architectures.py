"""What a fine-tuned model computes, in the words of Hugging Face's `config.json`."""

from collections.abc import Sequence
from typing import Any

from bert_tf.checkpoints import output_layers, run_directory
from bert_tf.checkpoints.formats import CheckpointSource
from bert_tf.runtime.files import InputError
from bert_tf.tasks import multiple_choice
from bert_tf.tasks.data_config import TAGGING
from bert_tf.tasks.glue import DEFINITIONS

SEQUENCE, TOKENS, CHOICE, SPAN = (
    f"BertFor{task}"
    for task in ("SequenceClassification", "TokenClassification", "MultipleChoice", "QuestionAnswering")
)
# By the values of --problem.
PROBLEM_TYPES = {
    "classification": "single_label_classification",
    "regression": "regression",
    "multi_label": "multi_label_classification",
}
# A run of `run_squad.py`, which has no --task_name, records this one.
SQUAD = "squad"
_HEAD_KEYS = ("architectures", "id2label", "label2id", "problem_type", "classifier_dropout", "finetuning_task")


def of_task(task: str, problem: str | None) -> tuple[str, str | None]:
    """The architecture of a task's model, and of a classifier of sequences its problem.

    Args:
      task: as a run records it.
      problem: the value of --problem, which only "text" has.
    """
    if task == SQUAD:
        return SPAN, None
    if task in multiple_choice.FILE_NAMES:
        return CHOICE, None
    if task == TAGGING:
        return TOKENS, None
    if task in DEFINITIONS:
        problem = "classification" if DEFINITIONS[task].labels else "regression"
    return SEQUENCE, problem


def hf_settings(source: CheckpointSource) -> dict[str, Any]:
    """What Hugging Face's `config.json` says of an output layer, as far as the checkpoint's folder tells it.

    Returns:
      `architectures`, `id2label`, `label2id` and `problem_type`, or some of them; nothing for a checkpoint that is
      neither a run's nor Hugging Face's.
    """
    if source.kind == "hf":
        config = output_layers.hf_config(source)
        settings = {name: config[name] for name in _HEAD_KEYS if name in config}
        if SEQUENCE in (settings.get("architectures") or ()) and source.shapes.get("output_weights", ())[:1] == (1,):
            settings["problem_type"] = PROBLEM_TYPES["regression"]  # as transformers computes the loss of one output
        return settings
    settings = run_directory.recorded(source.path)
    if "task" not in settings:
        return {}
    architecture, problem = of_task(settings["task"], settings.get("problem"))
    values: dict[str, Any] = {"architectures": [architecture]}
    if problem:
        values["problem_type"] = PROBLEM_TYPES[problem]
    has_names = architecture in (SEQUENCE, TOKENS)
    return values | (named(output_layers.recorded_classes(source) or ["LABEL_0"]) if has_names else {})


def named(classes: Sequence[str]) -> dict[str, Any]:
    """The names of classes, as `config.json` holds them."""
    return {
        "id2label": {str(number): name for number, name in enumerate(classes)},
        "label2id": {name: number for number, name in enumerate(classes)},
    }


def check(source: CheckpointSource, architecture: str, problem_type: str | None) -> None:
    """Checks that an output layer was trained for what it is to be used for, as far as its folder tells.

    Args:
      source: the fine-tuned model.
      architecture: what it is to be.
      problem_type: of a classifier of sequences.

    Raises:
      InputError: if it was trained for something else.
    """
    recorded = hf_settings(source)
    for found, expected in (
        (next(iter(recorded.get("architectures") or ()), None), architecture),
        (recorded.get("problem_type"), problem_type),
    ):
        if found and expected and found not in (expected, "BertModel"):
            layer = f"from_pretrained(): the output layer of {source.path}"
            raise InputError(f"{layer} was trained for {found}, not {expected}. Pass reset_head=True, and call fit().")
