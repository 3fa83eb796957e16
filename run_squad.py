"""Fine-tunes BERT on SQuAD 1.1 and 2.0: trains, predicts, evaluates, answers typed questions, exports.

The folder of a finished run (--output_dir) contains:

    model.ckpt-STEP.*          the last checkpoints, with the released variable names and `cls/squad/output_weights` and
                               `cls/squad/output_bias`
    checkpoint                 the name of the newest checkpoint
    bert_config.json           the model's config
    vocab.txt                  the tokenizer's vocabulary
    run.json                   flags, versions, and under "resume_settings" do_lower_case, max_seq_length, doc_stride,
                               max_query_length, version_2_with_negative, answer_text, and bilstm_layers and
                               bilstm_units if there is a BiLSTM
    null_threshold.json        SQuAD 2.0: {"null_score_diff_threshold", "best_f1", "model"}; tuned on the first
                               predicted file that has correct answers, and used for later files
    predictions.json           id -> answer
    nbest_predictions.json     id -> answers, best first, with probabilities and logits
    null_odds.json             SQuAD 2.0: id -> score of no answer minus the score of the best answer
    eval_results.txt, .json    the scores of these predictions
    metrics.jsonl              the metrics of training
    stage_1, stage_2...        the same files for all training files except the last one, if there are several
"""

from typing import TYPE_CHECKING

from absl import flags, logging

from bert_tf import program_flags
from bert_tf.runtime import program
from bert_tf.runtime.files import InputError
from bert_tf.serving.export_config import ExportConfig, check_no_bilstm
from bert_tf.tasks.squad.rules import ANSWER_TEXTS, ENSEMBLE_METHODS, SquadConfig

if TYPE_CHECKING:
    from bert_tf.finetuning.workflow import WorkflowConfig

program.section("Model, files and folders")
_TRAIN_FILE = flags.DEFINE_list(
    "train_file",
    [],
    "The SQuAD JSON file for training; several files (with commas) are used one after the other.",
)
_PREDICT_FILE = flags.DEFINE_string("predict_file", None, "The SQuAD JSON file with the questions to answer.")
_OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "The folder for checkpoints, logs and answers.")
_MODEL = program_flags.ModelFlags()
_ALLOW_CHANGES = flags.DEFINE_bool("allow_changed_settings", False, "Resume a run although its settings have changed.")
program.section("What to do")
_DO_TRAIN = flags.DEFINE_bool("do_train", False, "Train.")
_DO_PREDICT = flags.DEFINE_bool("do_predict", False, "Answer, and evaluate if the file has correct answers.")
_INTERACTIVE = flags.DEFINE_bool("interactive", False, "Answer typed questions about typed paragraphs.")
_EVALUATE_FILE = flags.DEFINE_string(
    "evaluate_file", None, "Only evaluate these answers to --predict_file, in the format of predictions.json."
)
_PREDICT_BATCH_SIZE = flags.DEFINE_integer(
    "predict_batch_size", 8, "Number of windows in a batch on each device.", lower_bound=1
)
_NUM_WORKERS = flags.DEFINE_integer(
    "num_workers", 0, "Number of processes that tokenize; 0 for one per core.", lower_bound=0
)
_VERBOSE_LOGGING = flags.DEFINE_bool("verbose_logging", False, "Report answers that can't be aligned with the text.")
program.section("Windows and answers")
_MAX_SEQ_LENGTH = flags.DEFINE_integer("max_seq_length", 384, "Length of a window: question, text and special tokens.")
_DOC_STRIDE = flags.DEFINE_integer("doc_stride", 128, "Number of pieces between the starts of two windows of a text.")
_MAX_QUERY_LENGTH = flags.DEFINE_integer("max_query_length", 64, "Longer questions are cut.")
_N_BEST_SIZE = flags.DEFINE_integer("n_best_size", 20, "Number of answers in the n-best list of each question.")
_MAX_ANSWER_LENGTH = flags.DEFINE_integer("max_answer_length", 30, "Greatest length of an answer in pieces.")
_VERSION_2 = flags.DEFINE_bool("version_2_with_negative", False, "SQuAD 2.0: some questions have no answer.")
_NULL_THRESHOLD = flags.DEFINE_float(
    "null_score_diff_threshold",
    None,
    "SQuAD 2.0: a question has no answer if the score of no answer minus the best answer's is above this; by default "
    "the threshold that was tuned for the model, or else 0.",
)
_TUNE_NULL_THRESHOLD = flags.DEFINE_bool(
    "tune_null_threshold",
    None,
    "SQuAD 2.0: tune the threshold for no answer, and store it; by default if none was tuned for the model yet.",
)
_ANSWER_TEXT = flags.DEFINE_enum(
    "answer_text", "original", ANSWER_TEXTS, "Find the text of answers by the release's alignment, or by offsets."
)
_FIX_ANSWER_OFFSETS = flags.DEFINE_bool(
    "fix_answer_offsets",
    False,
    "If a training answer is not at the position that its file gives, use its nearest occurrence in the text.",
)
_PAD_TO_MAX = flags.DEFINE_bool(
    "pad_to_max_seq_length",
    False,
    "Pad all windows to --max_seq_length; slower, but gives the release's n-best lists, where padding takes places.",
)
program.section("Training")
_FINETUNING = program_flags.FinetuningFlags()
_FRESH_HEAD = program_flags.FreshHeadFlag()
_BILSTM = program_flags.BiLstmFlags()
_TRAINING = program_flags.TrainingFlags()
program.section("Ensembles")
_ENSEMBLE_DIRS = flags.DEFINE_list("ensemble_dirs", [], "Folders of finished runs, which are used as an ensemble.")
_ENSEMBLE_METHOD = flags.DEFINE_enum(
    "ensemble_method",
    "distributions",
    ENSEMBLE_METHODS,
    "Average the models' distributions, or merge n-best lists that they have written.",
)
program.section("Devices")
_DISTRIBUTION = program_flags.DistributionFlags()
program.section("Export")
_DO_EXPORT = flags.DEFINE_bool("do_export", False, "Export a SavedModel that takes raw strings to --export_dir.")
_EXPORT = program_flags.ExportFlags()
_NEEDED = {
    "export_": "do_export",
    "tune_null_threshold": "version_2_with_negative",
    "bilstm_units": "bilstm_layers",
}
_NEEDED_BY_ANSWERS = {"null_score_diff_threshold": "version_2_with_negative"}


def main() -> None:
    """Carries out the steps that the flags ask for."""
    if _VERBOSE_LOGGING.value:
        logging.set_verbosity(logging.INFO)
    # An export takes the version of the finished run.
    program.require_together(_NEEDED | ({} if _DO_EXPORT.value else _NEEDED_BY_ANSWERS))
    if not (_DO_TRAIN.value or _DO_PREDICT.value or _INTERACTIVE.value or _DO_EXPORT.value or _EVALUATE_FILE.value):
        raise InputError(
            "At least one of --do_train, --do_predict, --interactive, --do_export and --evaluate_file must be given."
        )
    from bert_tf.export import export_run
    from bert_tf.finetuning.hyperparameters import fresh_variables
    from bert_tf.finetuning.run import FinetuningRun
    from bert_tf.tasks.squad import run as squad_run
    from bert_tf.tasks.squad.answerer import AnswerConfig, Answerer
    from bert_tf.tasks.squad.task import SquadTask

    task = SquadTask(make_config(), _TRAIN_FILE.value, _PREDICT_FILE.value)
    if _EVALUATE_FILE.value:
        for flag in (_DO_TRAIN, _DO_PREDICT, _INTERACTIVE, _DO_EXPORT):
            if flag.value:
                raise InputError(f"--evaluate_file only evaluates a finished file of answers. Omit --{flag.name}.")
        squad_run.evaluate_file(task, _EVALUATE_FILE.value, _OUTPUT_DIR.value)
        return
    export_config = make_export_config() if _DO_EXPORT.value else None
    _FRESH_HEAD.check(_DO_TRAIN.value)
    config, tokenizer = _MODEL.read((_ENSEMBLE_DIRS.value or [_OUTPUT_DIR.value])[0])
    run = FinetuningRun(
        task,
        config,
        tokenizer,
        _MAX_SEQ_LENGTH.value,
        # The numbers of steps are set by each training file.
        _TRAINING.config(_OUTPUT_DIR.value, num_train_steps=1, num_warmup_steps=0),
        _DISTRIBUTION.config(),
        init_checkpoint=_MODEL.init_checkpoint,
        num_workers=_NUM_WORKERS.value,
        fresh_variables=fresh_variables(config, reset_head=_FRESH_HEAD.value),
        pad_to_max_seq_length=_PAD_TO_MAX.value,
        bilstm=_BILSTM.config(),
        group_by_length=_FINETUNING.group_by_length,
    )
    if _DO_EXPORT.value:
        check_no_bilstm(run.bilstm is not None, "--do_export")
    if _INTERACTIVE.value:
        run.distribution_config.check_one_worker("--interactive")
    answer_config = AnswerConfig(
        _PREDICT_BATCH_SIZE.value,
        _NULL_THRESHOLD.value,
        _TUNE_NULL_THRESHOLD.value,
        _ENSEMBLE_DIRS.value,
        _ENSEMBLE_METHOD.value,
    )
    if _DO_TRAIN.value or _DO_PREDICT.value:
        squad_run.carry_out(run, make_workflow_config(), answer_config)
    if _INTERACTIVE.value:
        squad_run.interact(Answerer(run, answer_config))
    if export_config is not None:
        export_run(_OUTPUT_DIR.value, _EXPORT.export_dir, export_config)


def make_config() -> SquadConfig:
    """Returns the settings for reading questions, splitting texts into windows, and decoding answers."""
    return SquadConfig(
        version_2_with_negative=_VERSION_2.value,
        max_seq_length=_MAX_SEQ_LENGTH.value,
        doc_stride=_DOC_STRIDE.value,
        max_query_length=_MAX_QUERY_LENGTH.value,
        n_best_size=_N_BEST_SIZE.value,
        max_answer_length=_MAX_ANSWER_LENGTH.value,
        answer_text=_ANSWER_TEXT.value,
        fix_answer_offsets=_FIX_ANSWER_OFFSETS.value,
        pad_to_max_seq_length=_PAD_TO_MAX.value,
        verbose_logging=_VERBOSE_LOGGING.value,
    )


def make_export_config() -> ExportConfig:
    """Returns the settings of the export; the model answers as --do_predict with these flags and offsets does."""
    answers = {flag.name: flag.value for flag in (_DOC_STRIDE, _MAX_QUERY_LENGTH, _N_BEST_SIZE, _MAX_ANSWER_LENGTH)}
    return _EXPORT.config(
        max_seq_length=_MAX_SEQ_LENGTH.value, null_score_diff_threshold=_NULL_THRESHOLD.value, answers=answers
    )


def make_workflow_config() -> "WorkflowConfig":
    """Returns the steps to carry out and their settings."""
    from bert_tf.finetuning.hyperparameters import Hyperparameters
    from bert_tf.finetuning.workflow import WorkflowConfig

    hyperparameters = Hyperparameters(
        _TRAINING.train_batch_size, _TRAINING.learning_rate, _FINETUNING.num_train_epochs, _TRAINING.random_seed
    )
    return WorkflowConfig(
        do_train=_DO_TRAIN.value,
        do_eval=False,
        do_predict=_DO_PREDICT.value,
        candidates=[hyperparameters],
        warmup_proportion=_FINETUNING.warmup_proportion,
        num_train_steps=_FINETUNING.num_train_steps,
        allow_changed_settings=_ALLOW_CHANGES.value,
        flags=program.flag_values(),
    )


def cli() -> None:
    """Runs this module as a command."""
    program.run(main, required=["output_dir"])


if __name__ == "__main__":
    cli()
