"""Pre-trains BERT (masked LM and next sentence prediction), or evaluates a pre-trained model.

Reads the TFRecords of `data_prep.create_pretraining_data`, or of the original program.
"""

import os

from absl import flags

from bert_tf import program, program_flags, reporting
from bert_tf.config import BertConfig
from bert_tf.files import InputError
from bert_tf.pretraining import OBJECTIVES, PretrainingData, PretrainingRun

# The release's flags.
_BERT_CONFIG_FILE = flags.DEFINE_string("bert_config_file", None, "The bert_config.json of the model.")
_INPUT_FILE = flags.DEFINE_string("input_file", None, "TFRecord files: names and globs, separated by commas.")
_OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "Where checkpoints, logs and results are written.")
_INIT_CHECKPOINT = flags.DEFINE_string(
    "init_checkpoint", None, "Where to start: a TensorFlow checkpoint, a training folder, a Hugging Face folder."
)
_MAX_SEQ_LENGTH = flags.DEFINE_integer("max_seq_length", 128, "Length of the sequences, as in the data.")
_MAX_PREDICTIONS = flags.DEFINE_integer("max_predictions_per_seq", 20, "Masked positions, as in the data.")
_DO_TRAIN = flags.DEFINE_bool("do_train", False, "Train.")
_DO_EVAL = flags.DEFINE_bool("do_eval", False, "Evaluate on --input_file, after training if there is any.")
_EVAL_BATCH_SIZE = flags.DEFINE_integer("eval_batch_size", 8, "Examples in an evaluation batch.")
_NUM_TRAIN_STEPS = flags.DEFINE_integer("num_train_steps", 100000, "Steps at the end of training.")
_NUM_WARMUP_STEPS = flags.DEFINE_integer("num_warmup_steps", 10000, "Steps over which the learning rate rises.")
_MAX_EVAL_STEPS = flags.DEFINE_integer("max_eval_steps", 100, "Batches in an evaluation.")
_TRAINING = program_flags.TrainingFlags()
_DISTRIBUTION = program_flags.DistributionFlags()
# New ones.
_VOCAB_FILE = flags.DEFINE_string("vocab_file", None, "The data's vocabulary, to be checked and kept with the run.")
_OBJECTIVE = flags.DEFINE_enum("objective", "mlm_nsp", OBJECTIVES, "What is learned (paper, Table 5).")
_ALLOW_CHANGES = flags.DEFINE_bool("allow_changes", False, "Resume a run though its settings have changed.")


def main() -> None:
    """Flags to a run; the run does the rest."""
    if not (_DO_TRAIN.value or _DO_EVAL.value):
        raise InputError("At least one of --do_train and --do_eval must be given.")
    run = PretrainingRun(
        config=BertConfig.from_json_file(_BERT_CONFIG_FILE.value),
        objective=_OBJECTIVE.value,
        data=PretrainingData(
            input_file=_INPUT_FILE.value,
            max_seq_length=_MAX_SEQ_LENGTH.value,
            max_predictions_per_seq=_MAX_PREDICTIONS.value,
            vocab_file=_VOCAB_FILE.value or "",
        ),
        training_config=_TRAINING.config(_OUTPUT_DIR.value, _NUM_TRAIN_STEPS.value, _NUM_WARMUP_STEPS.value),
        distribution_config=_DISTRIBUTION.config(),
        init_checkpoint=_INIT_CHECKPOINT.value,
    )
    if _DO_TRAIN.value:
        run.record(program.flag_values(), allow_changes=_ALLOW_CHANGES.value)
        run.train()
    if _DO_EVAL.value:
        results = run.evaluate(_EVAL_BATCH_SIZE.value, _MAX_EVAL_STEPS.value)
        reporting.report_results(results, os.path.join(_OUTPUT_DIR.value, "eval_results.txt"))


if __name__ == "__main__":
    flags.mark_flags_as_required(["bert_config_file", "input_file", "output_dir"])
    program.run(main)
