"""The settings of the tasks of `run_classifier.py`: the task and its data."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, get_args

from msgspec import Meta

from bert_tf.config import Pooling
from bert_tf.runtime.files import InputError
from bert_tf.runtime.settings import Condition, FiniteAboveZero, FiniteFromZero, Settings, about, not_with, only_with
from bert_tf.sequences.text_packer import TRUNCATED, LongDocuments
from bert_tf.tasks import own_tasks
from bert_tf.tasks.tables import AUTO
from bert_tf.tasks.task_names import ALL, GLUE_TASKS, SIMILARITY, TABLE_1_TASKS, TAGGING, TASK_NAMES, TEXT

# The scores of all tasks that can select models; see `metrics`.
MetricName = Literal[
    "accuracy",
    "f1",
    "macro_f1",
    "micro_f1",
    "matthews_correlation",
    "pearson",
    "spearman",
    "precision",
    "recall",
    "recall_at_1",
]
METRICS: tuple[MetricName, ...] = get_args(MetricName)
# The tagging schemes; see `tagging.schemes`.
TagScheme = Literal["auto", "iob2", "iob1", "bioes", "bilou", "bmes", "bmewo", "plain"]
# Condition for flags that name data files: the files of GLUE and XNLI have fixed names.
_OWN_FILES = not_with("task_name", values=(*GLUE_TASKS, "xnli"), group="of GLUE or xnli")
_TEXT, _TAGGING, _SIMILARITY = (only_with("task_name", values=(name,)) for name in (TEXT, TAGGING, SIMILARITY))
_MULTI_LABEL = only_with("problem", values=("multi_label",))


class Columns(Settings, frozen=True):
    """The columns of your own data.

    Attributes:
      weight: column of the weights of training rows. Dev and test files do not need it.
    """

    needs: ClassVar[tuple[Condition, ...]] = (_TEXT,)

    text: Annotated[str, about("Column of the text.", flag="text_column", group="Data")] = "text"
    text_b: Annotated[str, about("Column of a second text.", flag="text_b_column")] = ""
    label: Annotated[
        str, about("Column of the label. Multi-label: also several columns of 0 and 1.", flag="label_column")
    ] = "label"
    id: Annotated[str, about('Column of a unique id. Default: "id", or else line numbers.', flag="id_column")] = ""
    weight: Annotated[str, about("Column of each row's weight in the training loss.", flag="weight_column")] = ""
    label_separator: Annotated[str, about("Separator between several labels."), _MULTI_LABEL] = ","


class LossConfig(Settings, frozen=True):
    """Options of the training loss of classes; see `model.heads.class_losses`. They have no effect on evaluation."""

    needs: ClassVar[tuple[Condition, ...]] = (
        only_with("task_name", values=(TEXT, TAGGING)),
        only_with("problem", values=("classification", "multi_label")),
    )

    label_smoothing: Annotated[
        float, about("Share of each training label that is spread evenly over all classes.", ge=0, lt=1, group="Data")
    ] = 0.0
    focal_gamma: Annotated[FiniteFromZero, about("Exponent of the focal loss; 0 for the cross entropy.")] = 0.0

    @property
    def record(self) -> dict[str, float]:
        """The options that are set, as arguments of `class_losses`."""
        return {name: value for name, value in self.to_dict().items() if value}


class ConfidenceConfig(Settings, frozen=True):
    """Settings of the probabilities: their calibration, and the lowest probability of an answer.

    Attributes:
      min_probability: for several labels, the probability of the least certain decision about a label; None for the
        value that the run of the model records.
    """

    needs: ClassVar[tuple[Condition, ...]] = (_TEXT, only_with("problem", values=("classification", "multi_label")))

    calibrate: Annotated[
        bool,
        about("Fit a temperature of the probabilities on the dev set, and use it.", group="Data"),
        only_with("do_eval"),
    ] = False
    min_probability: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        about("Lowest probability of an answer. Default: as in training, or 0."),
    ] = None
    abstain_label: Annotated[
        str, about("Answer below --min_probability.", min_length=1), only_with("min_probability")
    ] = "abstained"

    def check_labels(self, labels: Sequence[str]) -> None:
        """Raises an InputError if a class has the name of the answer below `min_probability`."""
        if self.min_probability and self.abstain_label in labels:
            raise InputError(f"--abstain_label: {self.abstain_label!r} is also a class. Use another name.")

    @property
    def record(self) -> dict[str, Any]:
        """`min_probability` and `abstain_label` by name; empty if there is no lowest probability."""
        return {name: getattr(self, name) for name in ("min_probability", "abstain_label") if self.min_probability}


class SimilarityConfig(Settings, frozen=True):
    """Settings of the training of sentence vectors.

    Attributes:
      pooling: see `VectorConfig`; None for the pooling that the model's directory records, or else "mean".
      scale: the cosine similarities of pairs are multiplied by it before the softmax.
      symmetric: if True, the loss also includes finding the anchor of each positive.
      max_score: scores are divided by it. The results must be from -1 to 1.
    """

    needs: ClassVar[tuple[Condition, ...]] = (_SIMILARITY,)

    pooling: Annotated[
        Pooling | None,
        about("Pooling of the tokens' states. Default: the model's, or mean.", group="Sentence vectors"),
    ] = None
    scale: Annotated[
        FiniteAboveZero, about("Factor of cosine similarities in the loss of pairs.", flag="similarity_scale")
    ] = 20.0
    symmetric: Annotated[bool, about("Also train to find the anchor of each positive.", flag="symmetric_loss")] = False
    max_score: Annotated[FiniteAboveZero, about("Largest score of a pair. Scores are divided by it.")] = 1.0


class DataConfig(Settings, frozen=True):
    """The task and its data.

    Attributes:
      train_file: training file; not for GLUE, whose files have fixed names.
      class_order: the order of the classes of the training set, if `labels` are not given.
      class_weights: the value of the flag, or a dict from classes to weights. In multi-label tasks, the weights apply
        to examples with the label.
      distillation_temperature: for training files with columns of probabilities; see `ClassifierModel`.
      delimiter: see `tables.read_table`.
      dev_fraction: fraction of the training rows to use as the dev set, if there is no dev file.
      tag_classes: the classes of the tagging model, if they are not the IOB2 tags of its types; see `TaggingTask`.
      tuned_in: the run directory with the settings of answers, such as a threshold, if the model is not trained; "" for
        the directory of the model.
      selection_metric: the score that selects models; None for the default of the task.
      vectors: for training sentence vectors: the `VectorConfig` of the model to start from.
    """

    task_name: Annotated[
        str, about(f"One of {', '.join(TASK_NAMES)}; several GLUE tasks separated by commas; or 'all'.", group="Data")
    ]
    data_dir: Annotated[
        str | None, about("Directory of the task's files; for several tasks, GLUE's root directory.")
    ] = None
    train_file: Annotated[str | None, about("Training file, if not in --data_dir."), _OWN_FILES] = None
    dev_file: Annotated[str | None, about("Dev file, if not in --data_dir."), _OWN_FILES] = None
    test_file: Annotated[str | None, about("Test file, if not in --data_dir."), _OWN_FILES] = None
    on_bad_row: Annotated[Literal["error", "skip"], about("How to handle invalid examples: stop or skip.")] = "error"
    xnli_language: Annotated[str, about("Language of XNLI."), only_with("task_name", values=("xnli",))] = "zh"
    columns: Columns = Columns()
    problem: Annotated[
        Literal["classification", "regression", "multi_label"], about("Type of the labels.", group="Data"), _TEXT
    ] = "classification"
    labels: Annotated[
        tuple[str, ...] | None,
        about("Classes or entity types. Default: those in the training file."),
        only_with("task_name", values=(TEXT, TAGGING)),
        only_with("problem", values=("classification", "multi_label")),
    ] = None
    class_order: tuple[str, ...] = ()
    class_weights: Annotated[
        str | dict[str, float],
        about("Class weights in the training loss: 'balanced' or 'class=weight,...'."),
        _TEXT,
        only_with("problem", values=("classification", "multi_label")),
    ] = ""
    loss: LossConfig = LossConfig()
    confidence: ConfidenceConfig = ConfidenceConfig()
    tuned_in: str = ""
    distillation_temperature: Annotated[
        float, about("Softens probability labels if above 1.", gt=0), _TEXT, not_with("problem", values=("regression",))
    ] = 1.0
    delimiter: Annotated[
        str,
        about("Cell delimiter, such as ';' or 'tab'. Default: detected."),
        only_with("task_name", values=(TEXT, "multiple_choice", SIMILARITY)),
    ] = AUTO
    similarity: SimilarityConfig = SimilarityConfig()
    vectors: Any = None
    documents: LongDocuments = TRUNCATED
    document_context: Annotated[
        bool, about("Add surrounding sentences of the document if the file has -DOCSTART- lines."), _TAGGING
    ] = True
    label_threshold: Annotated[
        str, about("Lowest probability of a label. Default: 0.5. 'tune': best F1 on the dev set."), _TEXT, _MULTI_LABEL
    ] = ""
    tag_scheme: Annotated[TagScheme, about("Tagging scheme. auto detects it."), _TAGGING] = AUTO
    tag_classes: tuple[str, ...] | None = None
    word_column: Annotated[
        str, about("Column of the words, as a name or a 1-based number. Default: detected."), _TAGGING
    ] = ""
    tag_column: Annotated[
        str, about("Column of the tags, as a name or a 1-based number. Default: detected."), _TAGGING
    ] = ""
    dev_fraction: Annotated[
        float,
        about("Fraction of the training file to use as the dev set.", ge=0, lt=1),
        _OWN_FILES,
        not_with("dev_file"),
    ] = 0.0
    selection_metric: Annotated[
        MetricName | None, about("Score that selects weights and trials, such as macro_f1. Default: the task's own.")
    ] = None


class FeatureConfig(Settings, frozen=True):
    """Feature-based tagging (paper, section 5.3): a BiLSTM on the activations of a frozen encoder.

    Attributes:
      layers: the layers to use; "" for fine-tuning. With layers, --learning_rate defaults to 1e-3 and
        --num_train_epochs to 10, because the BiLSTM is randomly initialised.
      combination: how several layers are combined.
      directory: stores the features for other runs with the same model, layers and text; "" for a temporary file.
    """

    needs: ClassVar[tuple[Condition, ...]] = (only_with("feature_layers"),)

    layers: Annotated[
        str,
        about(
            "Layers of the frozen model whose outputs are the features, such as '-1,-2,-3,-4' or 'embeddings'.",
            flag="feature_layers",
            group="Features of a frozen model",
        ),
        _TAGGING,
    ] = ""
    combination: Annotated[
        Literal["concat", "weighted_sum"], about("How to combine several --feature_layers.", flag="feature_combination")
    ] = "concat"
    directory: Annotated[
        str, about("Directory to store the features of --feature_layers for other runs.", flag="features_dir")
    ] = ""


def check_name(name: str) -> str:
    """Returns a task's name in lower case.

    Raises:
      InputError: if there is no such task.
    """
    known = (*TASK_NAMES, *own_tasks.names())
    if name.lower() not in known:
        raise InputError(f"--task_name is {name!r}. Use one of {', '.join(known)}.")
    return name.lower()


def parse(task_name: str) -> list[str]:
    """Returns the tasks of --task_name, which is one name, several separated by commas, or "all".

    Raises:
      InputError: if there is no such task, or if there are several names and one of them is not a GLUE task.
    """
    if task_name.lower() == ALL:
        return list(TABLE_1_TASKS)
    names = [check_name(name.strip()) for name in task_name.split(",")]
    for name in names if len(names) > 1 else ():
        if name not in GLUE_TASKS:
            raise InputError(f"--task_name: {name!r} can't be combined with others. Use only GLUE's tasks.")
    return names
