"""Fine-tunes BERT on sentence-level tasks: trains, evaluates, predicts."""

import os

from absl import flags

from bert_tf import finetuning, program, program_flags, reporting, sentence_task
from bert_tf.config import BertConfig
from bert_tf.files import InputError
from bert_tf.tasks.glue import DEFINITIONS, GlueTask
from bert_tf.tokenization import load_tokenizer

# The release's flags.
_DATA_DIR = flags.DEFINE_string("data_dir", None, "The folder of the task's files.")
_BERT_CONFIG_FILE = flags.DEFINE_string("bert_config_file", None, "The bert_config.json of the model.")
_TASK_NAME = flags.DEFINE_string("task_name", None, f"One of {', '.join(DEFINITIONS)}.")
_VOCAB_FILE = flags.DEFINE_string("vocab_file", None, "The vocab.txt of the model.")
_OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "Where checkpoints, logs and results are written.")
_INIT_CHECKPOINT = flags.DEFINE_string(
    "init_checkpoint", None, "The pre-trained model: a TensorFlow checkpoint, a training folder, a Hugging Face folder."
)
_DO_LOWER_CASE = flags.DEFINE_bool("do_lower_case", True, "True for uncased models, False for cased ones.")
_MAX_SEQ_LENGTH = flags.DEFINE_integer("max_seq_length", 128, "Longer sequences are cut.")
_DO_TRAIN = flags.DEFINE_bool("do_train", False, "Train.")
_DO_EVAL = flags.DEFINE_bool("do_eval", False, "Evaluate on the dev set.")
_DO_PREDICT = flags.DEFINE_bool("do_predict", False, "Predict the test set.")
_EVAL_BATCH_SIZE = flags.DEFINE_integer("eval_batch_size", 8, "Examples in an evaluation batch, on each device.")
_PREDICT_BATCH_SIZE = flags.DEFINE_integer("predict_batch_size", 8, "Examples in a prediction batch, on each device.")
_NUM_TRAIN_EPOCHS = flags.DEFINE_float("num_train_epochs", 3.0, "How often the training set is gone through.")
_WARMUP_PROPORTION = flags.DEFINE_float("warmup_proportion", 0.1, "Share of the steps in which the rate rises.")
_TRAINING = program_flags.TrainingFlags()
_DISTRIBUTION = program_flags.DistributionFlags()
# New ones.
_RELEASE_FORMAT = flags.DEFINE_bool("release_format", False, "Write test_results.tsv without its header.")
_ON_BAD_ROW = flags.DEFINE_enum("on_bad_row", "error", ["error", "skip"], "What to do with a row that can't be used.")
_XNLI_LANGUAGE = flags.DEFINE_string("xnli_language", "zh", "The language of XNLI.")
_ALLOW_CHANGES = flags.DEFINE_bool("allow_changes", False, "Resume a run though its settings have changed.")


def main() -> None:
    """Flags to a task and a run; then what was asked for, in turn."""
    if not (_DO_TRAIN.value or _DO_EVAL.value or _DO_PREDICT.value):
        raise InputError("At least one of --do_train, --do_eval and --do_predict must be given.")
    task = GlueTask(_TASK_NAME.value, _DATA_DIR.value, _ON_BAD_ROW.value, _XNLI_LANGUAGE.value)
    config = BertConfig.from_json_file(_BERT_CONFIG_FILE.value)
    tokenizer = load_tokenizer(_VOCAB_FILE.value, _DO_LOWER_CASE.value, _INIT_CHECKPOINT.value)
    output_dir = _OUTPUT_DIR.value
    train_examples = task.examples("train") if _DO_TRAIN.value else []
    steps, warmup_steps = 1, 0
    if _DO_TRAIN.value:
        steps, warmup_steps = finetuning.count_steps(
            len(train_examples), _TRAINING.train_batch_size, _NUM_TRAIN_EPOCHS.value, _WARMUP_PROPORTION.value
        )
    run = finetuning.FinetuningRun(
        task,
        config,
        tokenizer,
        _MAX_SEQ_LENGTH.value,
        _TRAINING.config(output_dir, steps, warmup_steps),
        _DISTRIBUTION.config(),
        _INIT_CHECKPOINT.value,
    )
    if _DO_TRAIN.value:
        run.record(program.flag_values(), len(train_examples), _ALLOW_CHANGES.value)
        run.train(run.featurize(train_examples))
    if _DO_EVAL.value:
        evaluate(run, task, output_dir)
    if _DO_PREDICT.value:
        predict(run, task, output_dir)


def evaluate(run: finetuning.FinetuningRun, task: GlueTask, output_dir: str) -> None:
    """Evaluates every dev split; the first one's scores go into eval_results.txt, as released."""
    global_step = run.restore()
    for split in task.dev_splits:
        features = run.featurize(task.examples(split))
        outputs = run.predict(features, _EVAL_BATCH_SIZE.value, split)
        results = sentence_task.release_results(task.scores(outputs, features), outputs, _EVAL_BATCH_SIZE.value)
        suffix = "" if split == task.dev_splits[0] else f"_{split}"
        reporting.report_results(
            {"global_step": global_step, **results}, os.path.join(output_dir, f"eval_results{suffix}.txt")
        )


def predict(run: finetuning.FinetuningRun, task: GlueTask, output_dir: str) -> None:
    """Predicts every test split; probabilities go into test_results.tsv."""
    run.restore()
    for split in task.test_splits:
        outputs = run.predict(run.featurize(task.examples(split)), _PREDICT_BATCH_SIZE.value, split)
        suffix = "" if split == "test" else split.removeprefix("test")
        path = os.path.join(output_dir, f"test_results{suffix}.tsv")
        sentence_task.write_test_results(path, outputs, task.labels, _RELEASE_FORMAT.value)
        program.say(f"Wrote {path}.")


if __name__ == "__main__":
    flags.mark_flags_as_required(["data_dir", "bert_config_file", "task_name", "vocab_file", "output_dir"])
    program.run(main)
