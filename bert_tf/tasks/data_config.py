"""The settings of the tasks of `run_classifier.py`: the task and its data."""

from typing import Annotated, Any, Literal

from bert_tf.runtime.files import InputError
from bert_tf.runtime.settings import Settings, about
from bert_tf.sequences.long_documents import TRUNCATED, LongDocuments
from bert_tf.tasks.tables import AUTO, ON_BAD_ROW

# The tasks of the paper's Table 1 in its order; --task_name=all trains them. Table 1 omits WNLI.
TABLE_1_TASKS = ("mnli", "qqp", "qnli", "sst-2", "cola", "sts-b", "mrpc", "rte")
GLUE_TASKS = ("cola", "sst-2", "mrpc", "sts-b", "qqp", "mnli", "qnli", "rte", "wnli")
TEXT, TAGGING = "text", "ner"
# "all", and several names with commas, are accepted for GLUE's tasks too.
TASK_NAMES = (*GLUE_TASKS, "xnli", "swag", "codah", "multiple_choice", TEXT, TAGGING)
PROBLEMS = ("classification", "regression", "multi_label")
# The schemes of tags; see `tagging.schemes`.
TAG_SCHEMES = ("iob2", "iob1", "bioes", "bilou", "plain")
# Of the layers of feature-based tagging.
COMBINATIONS = ("concat", "weighted_sum")


class Columns(Settings, frozen=True):
    """The columns of your own data.

    Attributes:
      weight: the weights of training rows; other files don't need it.
    """

    text: Annotated[str, about("Your own data: the column of the text.", flag="text_column", group="Data")] = "text"
    text_b: Annotated[str, about("Your own data: the column of a second text.", flag="text_b_column")] = ""
    label: Annotated[str, about("Column of the label; multi-label: or several of 0 and 1.", flag="label_column")] = (
        "label"
    )
    id: Annotated[
        str, about('Your own data: the column of a unique id; by default "id", or else line numbers.', flag="id_column")
    ] = ""
    weight: Annotated[
        str, about("Your own data: the column of the weights of training losses.", flag="weight_column")
    ] = ""
    label_separator: Annotated[str, about("Your own data: the separator of several labels.")] = ","


class DataConfig(Settings, frozen=True):
    """The task and its data.

    Attributes:
      train_file: the file, or examples in memory. GLUE's files have fixed names.
      class_weights: see `TextTask`.
      delimiter: see `tables.read_table`.
      dev_fraction: for data without a dev file.
      selection_metric: None for the task's own.
    """

    task_name: Annotated[
        str, about(f"One of {', '.join(TASK_NAMES)}; or several GLUE tasks with commas; or 'all'.", group="Data")
    ]
    data_dir: Annotated[str | None, about("Directory of the task's files; for several tasks, GLUE's root.")] = None
    train_file: Annotated[Any, about("Training file, if not in --data_dir; not for GLUE.")] = None
    dev_file: Annotated[Any, about("Dev file, if not in --data_dir; not for GLUE.")] = None
    test_file: Annotated[Any, about("Test file, if not in --data_dir; not for GLUE.")] = None
    on_bad_row: Annotated[Literal[ON_BAD_ROW], about("What to do if an example can't be used.")] = "error"
    xnli_language: Annotated[str, about("Language of XNLI.")] = "zh"
    columns: Columns = Columns()
    problem: Annotated[Literal[PROBLEMS], about("Your own data: the type of the labels.", group="Data")] = (
        "classification"
    )
    labels: Annotated[
        tuple[str, ...] | None, about("The classes or entity types; by default those of the training file.")
    ] = None
    class_weights: Annotated[
        str, about("Your own data: weights of the training losses: 'balanced' or 'class=weight,...'.")
    ] = ""
    delimiter: Annotated[
        str, about("Your own data: what separates the cells, such as ';' or 'tab'; by default as the file shows.")
    ] = AUTO
    documents: LongDocuments = TRUNCATED
    document_context: Annotated[
        bool, about("Tagging: add text of the document to a sentence, if the file has -DOCSTART-.")
    ] = True
    label_threshold: Annotated[
        str, about("Multi-label: least probability of a label; 'tune' for the best F1 on the dev set; by default 0.5.")
    ] = ""
    tag_scheme: Annotated[Literal[(AUTO, *TAG_SCHEMES)], about("Tagging: scheme of the tags; auto detects it.")] = AUTO
    word_column: Annotated[
        str, about("Tagging: number (from 1) or name of the words' column; by default it is detected.")
    ] = ""
    tag_column: Annotated[
        str, about("Tagging: number (from 1) or name of the tags' column; by default it is detected.")
    ] = ""
    dev_fraction: Annotated[
        float, about("Share of the training file that becomes the dev set; not for GLUE.", ge=0, lt=1)
    ] = 0.0
    selection_metric: Annotated[
        str | None, about("Score that weights and trials are chosen by, such as macro_f1; by default the task's.")
    ] = None


class FeatureConfig(Settings, frozen=True):
    """Feature-based tagging (paper, section 5.3): a BiLSTM on the activations of a frozen encoder.

    Attributes:
      layers: with them, the defaults of --learning_rate and --num_train_epochs are 1e-3 and 10, because the BiLSTM is
        randomly initialised.
      combination: of several layers.
      folder: keeps the features for other runs with the same model, layers and text; empty for a temporary file.
    """

    layers: Annotated[
        str,
        about(
            "Tagging with a frozen model (paper, Table 7): its layers, such as '-1,-2,-3,-4' or 'embeddings'.",
            flag="feature_layers",
            group="Features of a frozen model",
        ),
    ] = ""
    combination: Annotated[
        Literal[COMBINATIONS], about("How several --feature_layers are combined.", flag="feature_combination")
    ] = "concat"
    folder: Annotated[
        str, about("Directory that keeps the features of --feature_layers for other runs.", flag="features_dir")
    ] = ""


def check_name(name: str) -> str:
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
    names = [check_name(name.strip()) for name in task_name.split(",")]
    for name in names if len(names) > 1 else ():
        if name not in GLUE_TASKS:
            raise InputError(f"--task_name: {name!r} can't be combined with others. Use only GLUE's tasks.")
    return names
