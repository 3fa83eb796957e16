"""Pre-trains BERT with masked LM and next sentence prediction; evaluates and exports the model.

The input is the TFRecord files of `data_prep.create_pretraining_data` or of the original program.
"""

import os

from absl import flags

from bert_tf import program_flags
from bert_tf.distribution import devices
from bert_tf.optimization.settings import SecondSchedule
from bert_tf.pretraining.recipes import OBJECTIVES, RECIPES
from bert_tf.runtime import program, reporting
from bert_tf.runtime.files import InputError
from bert_tf.training.settings import SecondBatch, TrainingConfig

program.section("Model, data and folders")
_INPUT_FILE = flags.DEFINE_string("input_file", None, "TFRecord files: names and glob patterns, separated by commas.")
_OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "The folder for checkpoints, logs and results.")
_MODEL = program_flags.ModelFlags(with_casing=False)
_MODEL_SIZE = program_flags.ModelSizeFlags()
_RECIPE = flags.DEFINE_enum(
    "recipe",
    None,
    list(RECIPES),
    "Use the settings of a whole run for all flags that are not given: the paper's (appendix A.2; bert_base and "
    "bert_large also set --model_size), those of LAMB with batches of 65,536 and 32,768, or those with which a tiny "
    "model learns most in an hour of one core of a CPU.",
)
_OBJECTIVE = flags.DEFINE_enum(
    "objective",
    "mlm_nsp",
    OBJECTIVES,
    "mlm_nsp: masked LM and next sentence prediction; mlm: only masked LM; ltr: left-to-right LM (paper, Table 5).",
)
_MAX_SEQ_LENGTH = flags.DEFINE_integer("max_seq_length", 128, "Length of the sequences, as in the data.")
_MAX_PREDICTIONS = flags.DEFINE_integer("max_predictions_per_seq", 20, "Masked positions per sequence, as in the data.")
_ALLOW_CHANGES = flags.DEFINE_bool("allow_changed_settings", False, "Resume a run even if its settings have changed.")
program.section("What to do")
_DO_TRAIN = flags.DEFINE_bool("do_train", False, "Train.")
_DO_EVAL = flags.DEFINE_bool(
    "do_eval",
    False,
    "Evaluate on --input_file, or on --second_input_file if it is given; after training if --do_train is given.",
)
_EVAL_INPUT_FILE = flags.DEFINE_string(
    "eval_input_file", None, "Held-out TFRecord files, which are evaluated during training."
)
_EVAL_MAX_SEQ_LENGTH = flags.DEFINE_integer(
    "eval_max_seq_length", None, "Length of the sequences of --eval_input_file, if it is not --max_seq_length."
)
_EVAL_MAX_PREDICTIONS = flags.DEFINE_integer(
    "eval_max_predictions_per_seq",
    None,
    "Masked positions per sequence of --eval_input_file, if they are not --max_predictions_per_seq.",
)
_EVAL_STEPS = flags.DEFINE_integer(
    "eval_steps", 1000, "Training steps between evaluations on --eval_input_file.", lower_bound=1
)
_EVAL_BATCH_SIZE = flags.DEFINE_integer("eval_batch_size", 8, "Examples per evaluation batch.", lower_bound=1)
_MAX_EVAL_STEPS = flags.DEFINE_integer(
    "max_eval_steps", 100, "The largest number of batches per evaluation.", lower_bound=1
)
_KEEP_BEST = flags.DEFINE_bool(
    "use_best_checkpoint", False, "Use the weights with the smallest loss on --eval_input_file, not the last ones."
)
program.section("Training")
_NUM_TRAIN_STEPS = flags.DEFINE_integer("num_train_steps", 100000, "The step at which training ends.")
_NUM_WARMUP_STEPS = flags.DEFINE_integer("num_warmup_steps", 10000, "Steps over which the learning rate rises.")
_TRAINING = program_flags.TrainingFlags()
program.section("Second phase")
_SECOND_INPUT_FILE = flags.DEFINE_string(
    "second_input_file", None, "TFRecord files of a second phase with longer sequences (10% of the steps in the paper)."
)
_SECOND_MAX_SEQ_LENGTH = flags.DEFINE_integer("second_max_seq_length", 512, "Length of the second phase's sequences.")
_SECOND_MAX_PREDICTIONS = flags.DEFINE_integer(
    "second_max_predictions_per_seq", 77, "Masked positions per sequence in the second phase."
)
_SECOND_PROPORTION = flags.DEFINE_float(
    "second_phase_proportion", 0.1, "Share of the steps in the second phase.", lower_bound=0.0, upper_bound=1.0
)
_SECOND_BATCH_SIZE = flags.DEFINE_integer(
    "second_train_batch_size", None, "Examples in a step of the second phase; by default as in the first."
)
_SECOND_ACCUMULATION = flags.DEFINE_integer(
    "second_gradient_accumulation_steps",
    None,
    "Number of parts into which a batch of the second phase is split; by default as in the first.",
)
_SECOND_LEARNING_RATE = flags.DEFINE_float(
    "second_learning_rate",
    None,
    "Peak learning rate of the second phase. The rate of each phase then falls to 0 at its end; by default there is "
    "one schedule for both.",
)
_SECOND_WARMUP_STEPS = flags.DEFINE_integer(
    "second_num_warmup_steps", None, "Steps over which the learning rate rises to --second_learning_rate; 0 by default."
)
_SECOND_RESET_MOMENTS = flags.DEFINE_bool(
    "second_reset_moments",
    None,
    "Set the optimizer's means to 0 before the second phase with its --second_learning_rate; they are kept by default.",
)
program.section("Devices")
_DISTRIBUTION = program_flags.DistributionFlags()
program.section("Export")
_DO_EXPORT = flags.DEFINE_bool("do_export", False, "Write a SavedModel that takes raw strings to --export_dir.")
_EXPORT = program_flags.ExportFlags()
_NEEDED = {
    "export_": "do_export",
    "eval_max_": "eval_input_file",
    "eval_steps": "eval_input_file",
    "second_num_warmup_steps": "second_learning_rate",
    "second_reset_moments": "second_learning_rate",
    "second_": "second_input_file",
}


def main() -> None:
    """Trains, evaluates and exports as the flags say."""
    program_flags.set_defaults(RECIPES.get(_RECIPE.value, {}))
    program.require_together(_NEEDED)
    if _SECOND_LEARNING_RATE.value is not None and not _SECOND_INPUT_FILE.value:
        raise InputError(f"--recipe={_RECIPE.value} has a second phase, and needs --second_input_file for it.")
    if not (_DO_TRAIN.value or _DO_EVAL.value or _DO_EXPORT.value):
        raise InputError("At least one of --do_train, --do_eval and --do_export must be given.")
    if _EVAL_INPUT_FILE.value and not _DO_TRAIN.value:
        raise InputError(
            "--eval_input_file is read while a model is trained, and --do_train is not given. To evaluate a finished "
            "run on this file, give it as --input_file."
        )
    if _KEEP_BEST.value and not _EVAL_INPUT_FILE.value:
        raise InputError("--use_best_checkpoint needs --eval_input_file, on which the best weights are found.")
    export_config = _EXPORT.config() if _DO_EXPORT.value else None
    distribution_config = _DISTRIBUTION.config()
    from bert_tf.distribution import strategies
    from bert_tf.export import export_run
    from bert_tf.pretraining.data import PretrainingData
    from bert_tf.pretraining.run import PretrainingRun
    from bert_tf.training import agreement

    found = _MODEL.find(_OUTPUT_DIR.value)
    if export_config is not None and _DO_TRAIN.value and not found.vocab_file:
        raise InputError("--do_export needs --vocab_file: the exported model takes raw strings.")
    lengths = (_MAX_SEQ_LENGTH.value, _MAX_PREDICTIONS.value)
    data, phase_ends = [PretrainingData(_INPUT_FILE.value, *lengths)], [_NUM_TRAIN_STEPS.value]
    if _SECOND_INPUT_FILE.value:
        second_lengths = (_SECOND_MAX_SEQ_LENGTH.value, _SECOND_MAX_PREDICTIONS.value)
        data.append(PretrainingData(_SECOND_INPUT_FILE.value, *second_lengths, "--second_input_file"))
        phase_ends.insert(0, round(_NUM_TRAIN_STEPS.value * (1 - _SECOND_PROPORTION.value)))
    training_config = _TRAINING.config(_OUTPUT_DIR.value, _NUM_TRAIN_STEPS.value, _NUM_WARMUP_STEPS.value)
    run = PretrainingRun(
        config=_MODEL_SIZE.config(_MODEL.bert_config_file, found.vocab_file, found.config_file),
        objective=_OBJECTIVE.value,
        data=data,
        phase_ends=phase_ends,
        training_config=_with_second_phase(training_config, phase_ends[0]),
        distribution_config=distribution_config,
        vocab_file=found.vocab_file or "",
        init_checkpoint=_MODEL.init_checkpoint,
    )
    # Otherwise one worker would wait for another in an evaluation, perhaps after weeks of training.
    steps = (_DO_TRAIN, _DO_EVAL, _EVAL_BATCH_SIZE, _MAX_EVAL_STEPS)
    agreement.require(run.strategy, lambda: {flag.name: flag.value for flag in steps})
    if _DO_EVAL.value:
        devices.per_replica_batch_size(_EVAL_BATCH_SIZE.value, run.strategy, "--eval_batch_size")
    if _DO_TRAIN.value:
        evaluation = None
        if _EVAL_INPUT_FILE.value:
            given = (_EVAL_MAX_SEQ_LENGTH.value, _EVAL_MAX_PREDICTIONS.value)
            eval_lengths = [own or first for own, first in zip(given, lengths, strict=True)]
            held_out = PretrainingData(_EVAL_INPUT_FILE.value, *eval_lengths, "--eval_input_file")
            evaluation = run.held_out_evaluation(
                held_out,
                batch_size=_EVAL_BATCH_SIZE.value,
                max_steps=_MAX_EVAL_STEPS.value,
                every=_EVAL_STEPS.value,
                use_best_checkpoint=_KEEP_BEST.value,
            )
        run.record(program.flag_values(), allow_changed_settings=_ALLOW_CHANGES.value)
        run.train(evaluation)
    if _DO_EVAL.value:
        results = run.evaluate(_EVAL_BATCH_SIZE.value, _MAX_EVAL_STEPS.value)
        if strategies.is_chief(run.strategy):
            reporting.report_results(results, os.path.join(_OUTPUT_DIR.value, "eval_results.txt"))
    if export_config is not None and strategies.is_chief(run.strategy):
        export_run(_OUTPUT_DIR.value, _EXPORT.export_dir, export_config)


def _with_second_phase(config: TrainingConfig, start: int) -> TrainingConfig:
    """Adds the settings of the second phase, which begins after `start` steps."""
    batch = (_SECOND_BATCH_SIZE, _SECOND_ACCUMULATION)
    if any(flag.value is not None for flag in batch):
        sizes = config.train_batch_size, config.gradient_accumulation_steps
        sizes = [first if flag.value is None else flag.value for flag, first in zip(batch, sizes, strict=True)]
        config = config.replace(second_batch=SecondBatch(start, *sizes))
    if _SECOND_LEARNING_RATE.value is not None:
        second = SecondSchedule(
            start, _SECOND_LEARNING_RATE.value, _SECOND_WARMUP_STEPS.value or 0, bool(_SECOND_RESET_MOMENTS.value)
        )
        config = config.replace(optimizer=config.optimizer.replace(second_schedule=second))
    return config


def cli() -> None:
    """Runs this module as a command."""
    program.run(main, required=["input_file", "output_dir"])


if __name__ == "__main__":
    cli()
