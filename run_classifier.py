"""Fine-tunes BERT for classification, regression, multiple choice and tagging: trains, evaluates, predicts, exports."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import flags

from bert_tf import program_flags
from bert_tf.config import BertConfig
from bert_tf.runtime import program
from bert_tf.runtime.files import InputError
from bert_tf.serving.export_config import ExportConfig, check_no_bilstm
from bert_tf.tasks.names import COMBINATIONS, PROBLEMS, TAGGING, TASK_NAMES, parse
from bert_tf.tasks.tables import AUTO, ON_BAD_ROW

if TYPE_CHECKING:
    from bert_tf.finetuning.workflow import WorkflowConfig
    from bert_tf.tasks.registry import DataConfig
    from bert_tf.tasks.tagging.by_features import FeatureBased

program.section("Task, model and folders")
_TASK_NAME = flags.DEFINE_string(
    "task_name", None, f"One of {', '.join(TASK_NAMES)}; or several GLUE tasks, separated by commas; or 'all'."
)
_DATA_DIR = flags.DEFINE_string("data_dir", None, "The folder of the task's files; for several tasks, GLUE's root.")
_OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "The folder for checkpoints, logs and results.")
_MODEL = program_flags.ModelFlags()
_MAX_SEQ_LENGTH = flags.DEFINE_integer("max_seq_length", 128, "Longer sequences are cut; for tagging, into windows.")
_ALLOW_CHANGES = flags.DEFINE_bool(
    "allow_changed_settings", False, "Resume or evaluate a run although its settings have changed."
)
program.section("What to do")
_DO_TRAIN = flags.DEFINE_bool("do_train", False, "Train.")
_DO_EVAL = flags.DEFINE_bool("do_eval", False, "Evaluate on the dev set.")
_DO_PREDICT = flags.DEFINE_bool("do_predict", False, "Predict the test set.")
_EVAL_BATCH_SIZE = flags.DEFINE_integer(
    "eval_batch_size", 8, "Number of examples in an evaluation batch on each device.", lower_bound=1
)
_PREDICT_BATCH_SIZE = flags.DEFINE_integer(
    "predict_batch_size", 8, "Number of examples in a prediction batch on each device.", lower_bound=1
)
_RELEASE_FORMAT = flags.DEFINE_bool("original_format", False, "Write test_results.tsv without a header.")
_NUM_WORKERS = flags.DEFINE_integer(
    "num_workers", 0, "Number of processes that tokenize; 0 for one per core.", lower_bound=0
)
program.section("Data")
_TRAIN_FILE = flags.DEFINE_string("train_file", None, "The training file, if not in --data_dir; not for GLUE.")
_DEV_FILE = flags.DEFINE_string("dev_file", None, "The dev file, if not in --data_dir; not for GLUE.")
_TEST_FILE = flags.DEFINE_string("test_file", None, "The test file, if not in --data_dir; not for GLUE.")
_DEV_FRACTION = flags.DEFINE_float(
    "dev_fraction",
    0.0,
    "The share of the training file that becomes the dev set, for data without a dev file; not for GLUE.",
)
_ON_BAD_ROW = flags.DEFINE_enum("on_bad_row", "error", ON_BAD_ROW, "What to do if a row can't be used.")
_XNLI_LANGUAGE = flags.DEFINE_string("xnli_language", "zh", "The language of XNLI.")
_TEXT_COLUMN = flags.DEFINE_string("text_column", "text", "Your own data: the column of the text.")
_TEXT_B_COLUMN = flags.DEFINE_string("text_b_column", "", "Your own data: the column of a second text.")
_LABEL_COLUMN = flags.DEFINE_string("label_column", "label", "Your own data: the column of the label.")
_ID_COLUMN = flags.DEFINE_string(
    "id_column", "", 'Your own data: the column of a unique id; by default "id", or else line numbers.'
)
_WEIGHT_COLUMN = flags.DEFINE_string(
    "weight_column",
    "",
    "Your own data: the column of the training file with the rows' weights, by which their losses are multiplied.",
)
_PROBLEM = flags.DEFINE_enum("problem", "classification", PROBLEMS, "Your own data: the type of the labels.")
_LABELS = flags.DEFINE_list("labels", None, "The classes or entity types; by default those of the training file.")
_LABEL_SEPARATOR = flags.DEFINE_string("label_separator", ",", "Your own data: the separator of several labels.")
_DELIMITER = flags.DEFINE_string(
    "delimiter",
    AUTO,
    "Your own data: what separates the cells, such as ';' or 'tab'; cells may be quoted. By default, .tsv has tabs and "
    "no quotes, and .csv what its header shows: comma, semicolon, tab or pipe.",
)
_CLASS_WEIGHTS = flags.DEFINE_string(
    "class_weights", "", "Your own data: the classes' weights in the training loss: 'balanced' or 'class=weight,...'."
)
_DOCUMENT_CONTEXT = flags.DEFINE_bool(
    "document_context", True, "Tagging: add text of the document to a sentence, if the file has -DOCSTART-."
)
program.section("Training")
_FINETUNING = program_flags.FinetuningFlags()
_REINIT_LAYERS = flags.DEFINE_integer(
    "reinit_layers",
    0,
    "Number of top layers that are initialised anew, with the pooler (Zhang et al., 2021); helps on small data sets.",
)
_FRESH_HEAD = program_flags.FreshHeadFlag()
_BILSTM = program_flags.BiLstmFlags()
_TRAINING = program_flags.TrainingFlags()
program.section("Model selection")
_SWEEP = flags.DEFINE_bool(
    "sweep",
    False,
    "Try every batch size, learning rate and number of epochs below; by default those of the paper's appendix A.3.",
)
_SWEEP_BATCH_SIZES = flags.DEFINE_list("sweep_batch_sizes", ["16", "32"], "Batch sizes for --sweep.")
_SWEEP_RATES = flags.DEFINE_list(
    "sweep_learning_rates",
    ["5e-5", "3e-5", "2e-5"],
    "Learning rates for --sweep. For GLUE the paper (section 4.1) tries 5e-5,4e-5,3e-5,2e-5, with batches of 32 and 3 "
    "epochs.",
)
_SWEEP_EPOCHS = flags.DEFINE_list("sweep_epochs", ["2", "3", "4"], "Numbers of epochs for --sweep.")
_NUM_RESTARTS = flags.DEFINE_integer(
    "num_restarts", 1, "Number of seeds to try, starting with --random_seed; the best is used.", lower_bound=1
)
_EVALUATE_EVERY = flags.DEFINE_string(
    "evaluate_every",
    "epoch",
    "When the dev set is evaluated in training with --do_eval: every 'epoch', at the 'end', or a number of steps.",
)
_PATIENCE = flags.DEFINE_integer(
    "early_stopping_patience",
    0,
    "Training stops after so many successive evaluations without a better score; 0 for no early stopping.",
)
_KEEP_BEST = flags.DEFINE_bool(
    "use_best_checkpoint", False, "Use the weights with the best score on the dev set, not the last."
)
_SELECTION_METRIC = flags.DEFINE_string(
    "selection_metric",
    None,
    "The score on the dev set that weights and trials are chosen by, such as macro_f1; by default the task's own.",
)
program.section("Features of a frozen model")
_FEATURE_LAYERS = flags.DEFINE_string(
    "feature_layers",
    None,
    "Feature-based tagging (paper, Table 7): freeze the model, and train a BiLSTM on the activations of these layers, "
    "such as '-1,-2,-3,-4' (the last layer is -1) or 'embeddings'. The defaults of --learning_rate and "
    "--num_train_epochs are then 1e-3 and 10, because the BiLSTM begins with fresh weights.",
)
_FEATURE_COMBINATION = flags.DEFINE_enum(
    "feature_combination", "concat", COMBINATIONS, "How several --feature_layers are combined."
)
_FEATURES_DIR = flags.DEFINE_string(
    "features_dir",
    "",
    "A folder that keeps the features of --feature_layers for other runs of the same model and text.",
)
program.section("Devices")
_DISTRIBUTION = program_flags.DistributionFlags()
program.section("Export")
_DO_EXPORT = flags.DEFINE_bool("do_export", False, "Export a SavedModel that takes raw strings to --export_dir.")
_EXPORT = program_flags.ExportFlags()
_NEEDED = {"export_": "do_export", "sweep_": "sweep", "feature_combination": "feature_layers"}
# What trains a BiLSTM from fresh weights. The usual defaults are for weights that are pre-trained.
_FRESH_BILSTM = {"learning_rate": 1e-3, "num_train_epochs": 10.0}


def main() -> None:
    """Carries out the steps that the flags ask for."""
    if _FEATURE_LAYERS.value:
        program_flags.set_defaults(_FRESH_BILSTM)
    program.require_together(_NEEDED | ({} if _FEATURE_LAYERS.value else {"bilstm_units": "bilstm_layers"}))
    names = parse(_TASK_NAME.value)
    if _RELEASE_FORMAT.value and TAGGING in names:
        raise InputError(f"--original_format: not used by --task_name={TAGGING}, which writes no table. Omit it.")
    export_config = _EXPORT.config() if _DO_EXPORT.value else None
    if export_config is None or _DO_TRAIN.value or _DO_EVAL.value or _DO_PREDICT.value:
        fine_tune(names)
    if export_config is not None:
        export(names, export_config)


def fine_tune(names: Sequence[str]) -> None:
    """Trains, evaluates and predicts; several GLUE tasks have a run each."""
    from bert_tf.finetuning import workflow
    from bert_tf.finetuning.hyperparameters import fresh_variables
    from bert_tf.finetuning.run import FinetuningRun
    from bert_tf.tasks import glue_benchmark

    _FRESH_HEAD.check(_DO_TRAIN.value)
    workflow_config = make_workflow_config()
    config, tokenizer = _MODEL.read(_OUTPUT_DIR.value)
    feature_based = make_feature_based(config)
    tasks = [
        make_data_config(name, len(names) > 1).build_task(_OUTPUT_DIR.value, workflow_config.do_train, feature_based)
        for name in names
    ]
    run = FinetuningRun(
        tasks[0],
        config,
        tokenizer,
        _MAX_SEQ_LENGTH.value,
        # The numbers of steps are set by each candidate.
        _TRAINING.config(_OUTPUT_DIR.value, num_train_steps=1, num_warmup_steps=0),
        _DISTRIBUTION.config(),
        init_checkpoint=None if feature_based else _MODEL.init_checkpoint,
        num_workers=_NUM_WORKERS.value,
        fresh_variables=fresh_variables(config, _REINIT_LAYERS.value, _FRESH_HEAD.value),
        bilstm=_BILSTM.config(),
        group_by_length=_FINETUNING.group_by_length,
    )
    if _DO_EXPORT.value:
        check_no_bilstm(bool(feature_based or run.bilstm), "--do_export")
    if len(tasks) == 1:
        workflow.carry_out(run, workflow_config)
    else:
        glue_benchmark.carry_out(run, tasks, workflow_config, _DATA_DIR.value)


def export(names: Sequence[str], config: ExportConfig) -> None:
    """Exports the fine-tuned model; the models of several tasks are exported into one folder each."""
    from bert_tf.export import export_run
    from bert_tf.tasks.glue_benchmark import task_folder

    if len(names) == 1:
        export_run(_OUTPUT_DIR.value, _EXPORT.export_dir, config)
        return
    for name in names:
        folders = (task_folder(root, name) for root in (_OUTPUT_DIR.value, _EXPORT.export_dir))
        export_run(*folders, config)


def make_workflow_config() -> "WorkflowConfig":
    """Returns the steps to carry out and their settings."""
    from bert_tf.finetuning.hyperparameters import hyperparameter_grid
    from bert_tf.finetuning.selection import SelectionConfig
    from bert_tf.finetuning.workflow import WorkflowConfig

    batch_sizes, rates, epochs = [_TRAINING.train_batch_size], [_TRAINING.learning_rate], [_FINETUNING.num_train_epochs]
    if _SWEEP.value:
        batch_sizes = program_flags.numbers(_SWEEP_BATCH_SIZES, int)
        rates = program_flags.numbers(_SWEEP_RATES, float)
        epochs = program_flags.numbers(_SWEEP_EPOCHS, float)
    seeds = range(_TRAINING.random_seed, _TRAINING.random_seed + _NUM_RESTARTS.value)
    return WorkflowConfig(
        do_train=_DO_TRAIN.value,
        do_eval=_DO_EVAL.value,
        do_predict=_DO_PREDICT.value,
        candidates=hyperparameter_grid(batch_sizes, rates, epochs, seeds),
        warmup_proportion=_FINETUNING.warmup_proportion,
        num_train_steps=_FINETUNING.num_train_steps,
        selection=SelectionConfig(_EVALUATE_EVERY.value, _PATIENCE.value, _KEEP_BEST.value, _EVAL_BATCH_SIZE.value),
        predict_batch_size=_PREDICT_BATCH_SIZE.value,
        original_format=_RELEASE_FORMAT.value,
        allow_changed_settings=_ALLOW_CHANGES.value,
        flags=program.flag_values(),
    )


def make_feature_based(config: BertConfig) -> "FeatureBased | None":
    """Returns the settings of feature-based tagging; None to fine-tune."""
    if not _FEATURE_LAYERS.value:
        if _FEATURES_DIR.value:
            raise InputError("--features_dir keeps the features of --feature_layers, which is not given.")
        return None
    if _REINIT_LAYERS.value:
        raise InputError("--reinit_layers is for fine-tuning, but --feature_layers freezes the model.")
    if _FRESH_HEAD.value:
        raise InputError("--reset_head is for fine-tuning; the BiLSTM of --feature_layers is always new.")
    if _BILSTM.is_given:
        raise InputError("--bilstm_layers is for fine-tuning, but --feature_layers always has a BiLSTM of two layers.")
    from bert_tf.features import FrozenEncoder
    from bert_tf.tasks.tagging.by_features import FeatureBased

    encoder = FrozenEncoder(config, _MODEL.init_checkpoint, _FEATURE_LAYERS.value, "--feature_layers")
    return FeatureBased(encoder, _FEATURE_COMBINATION.value, _BILSTM.units, _FEATURES_DIR.value)


def make_data_config(task_name: str, in_glue_root: bool) -> "DataConfig":
    """Returns the task and its data."""
    from bert_tf.tasks.glue_benchmark import task_folder
    from bert_tf.tasks.registry import DataConfig
    from bert_tf.tasks.text import Columns

    data_dir = _DATA_DIR.value
    return DataConfig(
        task_name,
        task_folder(data_dir, task_name) if in_glue_root else data_dir,
        train_file=_TRAIN_FILE.value,
        dev_file=_DEV_FILE.value,
        test_file=_TEST_FILE.value,
        on_bad_row=_ON_BAD_ROW.value,
        xnli_language=_XNLI_LANGUAGE.value,
        columns=Columns(
            text=_TEXT_COLUMN.value,
            text_b=_TEXT_B_COLUMN.value,
            label=_LABEL_COLUMN.value,
            id=_ID_COLUMN.value,
            weight=_WEIGHT_COLUMN.value,
            label_separator=_LABEL_SEPARATOR.value,
        ),
        problem=_PROBLEM.value,
        labels=_LABELS.value,
        class_weights=_CLASS_WEIGHTS.value,
        delimiter=_DELIMITER.value,
        document_context=_DOCUMENT_CONTEXT.value,
        dev_fraction=_DEV_FRACTION.value,
        selection_metric=_SELECTION_METRIC.value,
    )


def cli() -> None:
    """Runs this module as a command."""
    program.run(main, required=["task_name", "output_dir"])


if __name__ == "__main__":
    cli()
