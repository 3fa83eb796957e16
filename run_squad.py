"""Fine-tunes BERT on SQuAD 1.1 and 2.0: trains, predicts, evaluates, answers typed questions, exports.

The folder of a finished run (--output_dir) holds:

    model.ckpt-STEP.*          the last checkpoints: released variable names, `cls/squad/output_weights` and `_bias`
    checkpoint                 the name of the newest checkpoint
    bert_config.json           the model's configuration
    vocab.txt                  the tokenizer's vocabulary
    run.json                   flags, versions, and under "resume_settings" do_lower_case, max_seq_length, doc_stride,
                               max_query_length, version_2_with_negative, answer_text, bilstm_layers and _units if any
    null_threshold.json        SQuAD 2.0: {"null_score_diff_threshold", "best_f1", "model"}; tuned on the first
                               predicted file with right answers, and used for later predictions
    predictions.json           id -> answer
    nbest_predictions.json     id -> answers, best first, with probabilities and logits
    null_odds.json             SQuAD 2.0: id -> score of no answer minus that of the best answer
    eval_results.txt, .json    the scores of these predictions
    metrics.jsonl              the metrics of training
    stage_1, stage_2...        the same for the training files before the last, if there are several
"""

import os

from absl import flags, logging

from bert_tf import program_flags
from bert_tf.checkpoints import run_directory
from bert_tf.config import BertConfig
from bert_tf.export import export_run
from bert_tf.finetuning.hyperparameters import Hyperparameters
from bert_tf.finetuning.run import FinetuningRun
from bert_tf.runtime import program
from bert_tf.runtime.files import InputError
from bert_tf.serving.saved_model import ExportConfig
from bert_tf.tasks.squad import run as squad_run
from bert_tf.tasks.squad.answerer import ENSEMBLE_METHODS, AnswerConfig, Answerer
from bert_tf.tasks.squad.examples import ANSWER_TEXTS
from bert_tf.tasks.squad.task import PREDICT_SPLIT, SquadConfig, SquadTask
from bert_tf.tokenization import load_tokenizer

# The release's flags.
_BERT_CONFIG_FILE = flags.DEFINE_string(
    "bert_config_file", None, "The bert_config.json of the model; by default the finished run's."
)
_VOCAB_FILE = flags.DEFINE_string("vocab_file", None, "The vocab.txt of the model; by default the finished run's.")
_OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "Where checkpoints, logs and answers are written.")
_TRAIN_FILE = flags.DEFINE_list(
    "train_file", [], "SQuAD JSON to train on; several files, separated by commas, are used in turn."
)
_PREDICT_FILE = flags.DEFINE_string("predict_file", None, "SQuAD JSON to be answered.")
_INIT_CHECKPOINT = flags.DEFINE_string(
    "init_checkpoint", None, "The pre-trained model: a TensorFlow checkpoint, a training folder, a Hugging Face folder."
)
_DO_LOWER_CASE = flags.DEFINE_bool("do_lower_case", True, "True for uncased models, False for cased ones.")
_MAX_SEQ_LENGTH = flags.DEFINE_integer("max_seq_length", 384, "Longest window: question, text and special tokens.")
_DOC_STRIDE = flags.DEFINE_integer("doc_stride", 128, "Pieces between the begins of two windows of a long text.")
_MAX_QUERY_LENGTH = flags.DEFINE_integer("max_query_length", 64, "Longer questions are cut.")
_DO_TRAIN = flags.DEFINE_bool("do_train", False, "Train.")
_DO_PREDICT = flags.DEFINE_bool(
    "do_predict", False, "Answer --predict_file, and evaluate the answers if the right ones are known."
)
_PREDICT_BATCH_SIZE = flags.DEFINE_integer("predict_batch_size", 8, "Windows in a prediction batch, on each device.")
_NUM_TRAIN_EPOCHS = flags.DEFINE_float("num_train_epochs", 3.0, "Number of passes through each training file.")
_WARMUP_PROPORTION = flags.DEFINE_float(
    "warmup_proportion", 0.1, "Share of the steps in which the learning rate rises."
)
_N_BEST_SIZE = flags.DEFINE_integer("n_best_size", 20, "Answers that are listed for each question.")
_MAX_ANSWER_LENGTH = flags.DEFINE_integer("max_answer_length", 30, "The longest answer, in pieces.")
_VERBOSE_LOGGING = flags.DEFINE_bool("verbose_logging", False, "Name answers that can't be aligned with the text.")
_VERSION_2 = flags.DEFINE_bool("version_2_with_negative", False, "SQuAD 2.0: some questions have no answer.")
_NULL_THRESHOLD = flags.DEFINE_float(
    "null_score_diff_threshold",
    None,
    "SQuAD 2.0: odds above it mean that there is no answer; by default the one tuned for the model, or else 0.",
)
_TRAINING = program_flags.TrainingFlags()
_DISTRIBUTION = program_flags.DistributionFlags()
# New ones.
_ANSWER_TEXT = flags.DEFINE_enum(
    "answer_text", "release", ANSWER_TEXTS, "Take answers as the release aligns them, or by their character offsets."
)
_FIX_ANSWER_OFFSETS = flags.DEFINE_bool(
    "fix_answer_offsets",
    False,
    "If a training answer isn't at the place given in the file, use it at the nearest place.",
)
_PAD_TO_MAX = flags.DEFINE_bool(
    "pad_to_max_seq_length",
    False,
    "Pad all windows to the same length, as the release does; slower, with the same n-best lists.",
)
_TUNE_NULL_THRESHOLD = flags.DEFINE_bool(
    "tune_null_threshold",
    None,
    "SQuAD 2.0: store the best threshold; by default only if none was tuned for the model yet.",
)
_ENSEMBLE_DIRS = flags.DEFINE_list("ensemble_dirs", [], "Folders of finished runs that answer together.")
_ENSEMBLE_METHOD = flags.DEFINE_enum(
    "ensemble_method",
    "distributions",
    ENSEMBLE_METHODS,
    "Average the models' distributions, or merge their n-best lists.",
)
_BILSTM = program_flags.BiLstmFlags()
_INTERACTIVE = flags.DEFINE_bool("interactive", False, "Answer paragraphs and questions from the terminal.")
_EVALUATE_FILE = flags.DEFINE_string(
    "evaluate_file", None, "Only evaluate these answers to --predict_file: a predictions.json of any system."
)
_GROUP_BY_LENGTH = program_flags.define_group_by_length()
_NUM_WORKERS = flags.DEFINE_integer("num_workers", 0, "Processes that tokenize; 0 for one on each core.")
_DO_EXPORT = flags.DEFINE_bool("do_export", False, "Write a SavedModel that takes raw strings, into --export_dir.")
_EXPORT = program_flags.ExportFlags()
_ALLOW_CHANGES = flags.DEFINE_bool("allow_changes", False, "Resume a run though its settings have changed.")


def main() -> None:
    """Makes the task and the run from the flags, and then trains, predicts, answers and exports as asked."""
    if _VERBOSE_LOGGING.value:
        logging.set_verbosity(logging.INFO)
    task = SquadTask(make_config(), _TRAIN_FILE.value, _PREDICT_FILE.value)
    if _EVALUATE_FILE.value:
        squad_run.evaluate_file(task, _EVALUATE_FILE.value, _OUTPUT_DIR.value)
        return
    if not (_DO_TRAIN.value or _DO_PREDICT.value or _INTERACTIVE.value or _DO_EXPORT.value):
        raise InputError("At least one of --do_train, --do_predict, --interactive and --do_export must be given.")
    export_config = make_export_config() if _DO_EXPORT.value else None
    run = make_run(task)
    answer_config = AnswerConfig(
        _PREDICT_BATCH_SIZE.value,
        _NULL_THRESHOLD.value,
        _TUNE_NULL_THRESHOLD.value,
        _ENSEMBLE_DIRS.value,
        _ENSEMBLE_METHOD.value,
    )
    run.prepare((task.train_splits if _DO_TRAIN.value else []) + ([PREDICT_SPLIT] if _DO_PREDICT.value else []))
    if _DO_TRAIN.value:
        hyperparameters = Hyperparameters(
            _TRAINING.train_batch_size, _TRAINING.learning_rate, _NUM_TRAIN_EPOCHS.value, _TRAINING.random_seed
        )
        squad_run.train(run, hyperparameters, _WARMUP_PROPORTION.value, program.flag_values(), _ALLOW_CHANGES.value)
    if _DO_PREDICT.value:
        squad_run.predict(run, answer_config)
    if _INTERACTIVE.value:
        squad_run.interact(Answerer(run, answer_config))
    if export_config is not None:
        export_run(_OUTPUT_DIR.value, _EXPORT.export_dir, export_config)


def make_config() -> SquadConfig:
    """How questions are read, cut into windows and answered."""
    return SquadConfig(
        _VERSION_2.value,
        _MAX_SEQ_LENGTH.value,
        _DOC_STRIDE.value,
        _MAX_QUERY_LENGTH.value,
        _N_BEST_SIZE.value,
        _MAX_ANSWER_LENGTH.value,
        _ANSWER_TEXT.value,
        _FIX_ANSWER_OFFSETS.value,
        _PAD_TO_MAX.value,
        _VERBOSE_LOGGING.value,
    )


def make_export_config() -> ExportConfig:
    """How the model is exported: to answer as --do_predict does with the same flags, and --answer_text=offsets."""
    answers = {flag.name: flag.value for flag in (_DOC_STRIDE, _MAX_QUERY_LENGTH, _N_BEST_SIZE, _MAX_ANSWER_LENGTH)}
    config = _EXPORT.config(
        max_seq_length=_MAX_SEQ_LENGTH.value, null_score_diff_threshold=_NULL_THRESHOLD.value, answers=answers
    )
    if _BILSTM.config():
        config.check_bilstm()
    return config


def make_run(task: SquadTask) -> FinetuningRun:
    """The run; its model may have been trained before."""
    finished = (_ENSEMBLE_DIRS.value or [_OUTPUT_DIR.value])[0]
    config_file = _BERT_CONFIG_FILE.value or os.path.join(finished, run_directory.CONFIG_FILE)
    vocab_file = _VOCAB_FILE.value or os.path.join(finished, run_directory.VOCAB_FILE)
    return FinetuningRun(
        task,
        BertConfig.from_json_file(config_file),
        load_tokenizer(vocab_file, _DO_LOWER_CASE.value, _INIT_CHECKPOINT.value),
        _MAX_SEQ_LENGTH.value,
        _TRAINING.config(_OUTPUT_DIR.value, num_train_steps=1, num_warmup_steps=0),  # counted for each training file
        _DISTRIBUTION.config(),
        _INIT_CHECKPOINT.value,
        _NUM_WORKERS.value,
        pad_to_max_seq_length=_PAD_TO_MAX.value,
        bilstm=_BILSTM.config(),
        group_by_length=_GROUP_BY_LENGTH.value,
    )


if __name__ == "__main__":
    flags.mark_flags_as_required(["output_dir"])
    program.run(main)
