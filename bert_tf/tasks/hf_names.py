"""The architecture of a fine-tuned model in Hugging Face's `config.json`."""

from collections.abc import Sequence
from typing import Any

from bert_tf.checkpoints import class_names, run_record
from bert_tf.checkpoints.class_names import CHOICE, ENCODER, SEQUENCE, SPAN, TOKENS
from bert_tf.checkpoints.reading import CheckpointSource
from bert_tf.runtime.files import InputError
from bert_tf.tasks.registry import TASKS
from bert_tf.tasks.sentences.glue import DEFINITIONS

# The Python classes for these architectures. For regression, the class is `Regressor`.
_NAMES = ("Classifier", "TokenClassifier", "MultipleChoice", "QuestionAnswerer", "SentenceEncoder")
CLASSES = dict(zip((SEQUENCE, TOKENS, CHOICE, SPAN, ENCODER), _NAMES, strict=True))
# Maps values of --problem to Hugging Face's problem types.
PROBLEM_TYPES = {
    "classification": "single_label_classification",
    "regression": "regression",
    "multi_label": "multi_label_classification",
}
_HEAD_KEYS = ("architectures", "id2label", "label2id", "problem_type", "classifier_dropout", "finetuning_task")


def of_task(task: str, problem: str | None) -> tuple[str, str | None]:
    """Returns the architecture of a task's model and, for a sequence classifier, its problem.

    Args:
      task: the recorded name of the task.
      problem: the value of --problem for the task "text"; None for other tasks.
    """
    if task in DEFINITIONS:
        problem = "classification" if DEFINITIONS[task].labels else "regression"
    architecture = TASKS[task].architecture if task in TASKS else SEQUENCE
    return architecture, problem if architecture == SEQUENCE else None


def hf_settings(source: CheckpointSource) -> dict[str, Any]:
    """Returns the settings of an output layer for Hugging Face's `config.json`.

    Returns:
      The recorded keys among `architectures`, `id2label`, `label2id` and `problem_type`. Only run directories and
      Hugging Face's checkpoints have records.
    """
    is_hf = source.kind == "hf"
    settings = {} if is_hf else run_record.recorded(source.path)
    if "task" not in settings:
        config = class_names.hf_config(source) if is_hf else {}
        head = {name: config[name] for name in _HEAD_KEYS if name in config}
        is_sequence = SEQUENCE in (head.get("architectures") or [SEQUENCE])
        is_binary = head.get("problem_type") == PROBLEM_TYPES["multi_label"]
        if is_sequence and not is_binary and source.shapes.get("output_weights", ())[:1] == (1,):
            head["problem_type"] = PROBLEM_TYPES["regression"]  # transformers uses a regression loss for one output
        return head
    architecture, problem = of_task(settings["task"], settings.get("problem"))
    values: dict[str, Any] = {"architectures": [architecture]}
    if problem:
        values["problem_type"] = PROBLEM_TYPES[problem]
    has_names = architecture in (SEQUENCE, TOKENS)
    return values | (named(class_names.recorded_classes(source) or ["LABEL_0"]) if has_names else {})


def named(classes: Sequence[str]) -> dict[str, Any]:
    """Returns the names of classes in the format of `config.json`."""
    return {
        "id2label": {str(number): name for number, name in enumerate(classes)},
        "label2id": {name: number for number, name in enumerate(classes)},
    }


def check(source: CheckpointSource, architecture: str, problem_type: str | None) -> None:
    """Checks that an output layer was trained for the intended use, if its use is recorded.

    Args:
      source: the fine-tuned model.
      architecture: the intended architecture.
      problem_type: the intended problem of a sequence classifier.

    Raises:
      InputError: if the layer was trained for another use.
    """
    recorded = hf_settings(source)
    for found, expected in (
        (next(iter(recorded.get("architectures") or ()), None), architecture),
        (recorded.get("problem_type"), problem_type),
    ):
        if found and expected and found not in (expected, "BertModel"):
            layer = f"from_pretrained(): the output layer of {source.path}"
            raise InputError(f"{layer} was trained for {found}, not {expected}. Pass reset_head=True and call fit().")
