"""What the flags of the tasks can choose: the tasks, the problems of your own data, the combinations of features."""

from bert_tf.runtime.files import InputError

# The tasks of the paper's Table 1 in its order; --task_name=all trains them. Table 1 omits WNLI.
TABLE_1_TASKS = ("mnli", "qqp", "qnli", "sst-2", "cola", "sts-b", "mrpc", "rte")
GLUE_TASKS = ("cola", "sst-2", "mrpc", "sts-b", "qqp", "mnli", "qnli", "rte", "wnli")
TEXT, TAGGING = "text", "ner"
# "all", and several names with commas, are accepted for GLUE's tasks too.
TASK_NAMES = (*GLUE_TASKS, "xnli", "swag", "codah", "multiple_choice", TEXT, TAGGING)
PROBLEMS = ("classification", "regression", "multi_label")
# Of the layers of feature-based tagging.
COMBINATIONS = ("concat", "weighted_sum")


def check(name: str) -> str:
    """Returns a task's name in lower case.

    Raises:
      InputError: if there is no such task.
    """
    if name.lower() not in TASK_NAMES:
        raise InputError(f"--task_name is {name!r}. Use one of {', '.join(TASK_NAMES)}.")
    return name.lower()


def parse(task_name: str) -> list[str]:
    """Returns the tasks of --task_name, which is one name, several with commas between them, or "all".

    Raises:
      InputError: if there is no such task, or if there are several names and one of them is not a GLUE task.
    """
    if task_name.lower() == "all":
        return list(TABLE_1_TASKS)
    names = [check(name.strip()) for name in task_name.split(",")]
    for name in names if len(names) > 1 else ():
        if name not in GLUE_TASKS:
            raise InputError(f"--task_name: {name!r} can't be combined with others. Use only GLUE's tasks.")
    return names
