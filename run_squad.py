"""Fine-tunes BERT on SQuAD 1.1 and 2.0: train, predict, evaluate, answer typed questions, export.

The directory of a finished run (--output_dir) contains:

    model.ckpt-STEP.*          the last checkpoints, with the original variable names and `cls/squad/output_weights` and
                               `cls/squad/output_bias`
    checkpoint                 the name of the newest checkpoint
    bert_config.json           the model's config
    vocab.txt                  the tokenizer's vocabulary
    run.json                   flags, versions, and under "resume_settings" do_lower_case, max_seq_length, doc_stride,
                               max_query_length, version_2_with_negative, answer_text, and bilstm_layers and
                               bilstm_units if there is a BiLSTM
    tuned.json                 SQuAD 2.0: {"null_score_diff_threshold", "best_f1", "model"}; tuned on the first
                               predicted file with correct answers, and used for later files
    predictions.json           id -> answer
    nbest_predictions.json     id -> answers, best first, with probabilities and logits
    null_odds.json             SQuAD 2.0: id -> score of no answer minus the score of the best answer
    eval_results.txt, .json    the scores of the predictions
    metrics.jsonl              the training metrics
    stage_1, stage_2...        with several training files: the same files for each training file except the last one
"""

from absl import logging

from bert_tf import program_flags
from bert_tf.finetuning.finetuning_config import FinetuningConfig
from bert_tf.runtime import path_checks, program
from bert_tf.runtime.settings import only_with
from bert_tf.serving.export_config import ExportConfig
from bert_tf.tasks.squad.rules import AnswerConfig, SquadConfig, SquadSteps

_CONFIG = program_flags.SettingsFlags(FinetuningConfig, "run_squad", output_dir=None, max_seq_length=384, num_workers=0)
_SQUAD = program_flags.SettingsFlags(SquadConfig)
_ANSWERS = program_flags.SettingsFlags(AnswerConfig)
_STEPS = program_flags.SettingsFlags(SquadSteps)
_EXPORT = program_flags.ExportFlags(is_step=True)
_FILES = {"do_train": "train_file", "do_predict": "predict_file"}
for _step, _file in _FILES.items():
    program.needs(_step, only_with(_file))


def main() -> None:
    """Trains, answers, evaluates and exports, as the flags select."""
    config, squad, answers, steps, export_config = read_settings()
    from bert_tf.checkpoints import pretrained
    from bert_tf.export import check_can_export, export_run
    from bert_tf.finetuning.finetune import finetune
    from bert_tf.finetuning.run import FinetuningRun
    from bert_tf.tasks.squad import typed_questions
    from bert_tf.tasks.squad.answerer import Answerer
    from bert_tf.tasks.squad.squad_task import SquadTask, evaluate_file

    output_dir = config.training.output_dir
    task = SquadTask(squad, steps.train_file, steps.predict_file, answers)
    if steps.evaluate_file:
        evaluate_file(task, steps.evaluate_file, output_dir)
        return
    model = pretrained.read_model(config.model, answers.ensemble_dirs[0] if answers.ensemble_dirs else output_dir)
    if export_config is not None:
        check_can_export(config)
    if config.do_train or config.do_predict:
        finetune(task, config, model)
    if export_config is not None:
        export_run(output_dir, _EXPORT.export_dir, export_config)
    if steps.interactive:
        typed_questions.interact(Answerer(FinetuningRun(task, config, model), answers))


def read_settings() -> tuple[FinetuningConfig, SquadConfig, AnswerConfig, SquadSteps, ExportConfig | None]:
    """Returns the settings that the flags contain, after all checks that need neither TensorFlow nor the data."""
    program.check_needs()
    program.require_one("do_train", "do_predict", "interactive", "do_export", "evaluate_file")
    config, answers, steps = _CONFIG.config(flags=program.flag_values()), _ANSWERS.config(), _STEPS.config()
    squad = _SQUAD.config(
        max_seq_length=config.max_seq_length, pad_to_max_seq_length=config.training.pad_to_max_seq_length
    )
    if squad.verbose_logging:
        logging.set_verbosity(logging.INFO)
    config.distribution.check_tf_config()
    if steps.interactive:
        config.distribution.check_one_worker("--interactive")
    path_checks.check_output_directory(config.training.output_dir, "--output_dir")
    data_files = [_FILES[name] for name in _FILES if program.flag_values()[name]]
    program.require_files(*data_files, "vocab_file", "bert_config_file", "evaluate_file")
    squad.check_lengths()
    export_config = make_export_config(config, squad, answers) if _EXPORT.do_export else None
    return config, squad, answers, steps, export_config


def make_export_config(config: FinetuningConfig, squad: SquadConfig, answers: AnswerConfig) -> ExportConfig:
    """Returns the settings of the export. The exported model answers like --do_predict with the same flags."""
    names = ("doc_stride", "max_query_length", "n_best_size", "max_answer_length")
    return _EXPORT.config(
        max_seq_length=config.max_seq_length,
        null_score_diff_threshold=answers.null_score_diff_threshold,
        answers={name: getattr(squad, name) for name in names},
    )


def cli() -> None:
    """Runs this module as a command."""
    program.run(main, required=["output_dir"])


if __name__ == "__main__":
    cli()
