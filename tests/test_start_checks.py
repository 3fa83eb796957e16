"""Errors that can be detected at the start appear before TensorFlow is imported, or before texts are tokenized."""

import pytest

from bert_tf.checkpoints import saver
from bert_tf.encoder import BertEncoder
from bert_tf.finetuning import workflow
from bert_tf.finetuning.finetuning_config import FinetuningConfig, TrialsConfig
from bert_tf.finetuning.run import FinetuningRun
from bert_tf.finetuning.task import TaskData
from bert_tf.optimization import settings as optimization
from bert_tf.optimization.settings import OptimizerConfig, SecondSchedule
from bert_tf.runtime.errors import InputError
from bert_tf.tasks import registry
from bert_tf.tasks.data_config import METRICS, DataConfig
from bert_tf.tasks.glue import DEFINITIONS
from bert_tf.tasks.squad.rules import SquadConfig
from bert_tf.tasks.tagging.tagging_task import TaggingTask
from tests import command_server, finished_runs, programs
from tests.conftest import assert_refused
from tests.finished_runs import write_model

CLASSIFIER = "run_classifier.py --task_name=text --train_file={file} --do_train"
SQUAD = "run_squad.py --train_file={file} --do_train"
PRETRAINING = "run_pretraining.py --input_file={file} --do_train"
PREPARATION = "-m data_prep.create_pretraining_data --input_file={file} --output_file={new} --vocab_file={vocab}"
OUT = "--output_dir={new}"
# Commands whose last flag has an effect only with another flag.
NEEDS = {
    f"run_classifier.py --task_name=rte {OUT} --sweep_epochs=2": "--sweep",
    f"run_classifier.py --task_name=rte {OUT} --reset_head": "--do_train",
    f"run_classifier.py --task_name=ner {OUT} --feature_combination=concat": "--feature_layers",
    f"run_classifier.py --task_name=cola {OUT} --do_train --bilstm_units=8": "--bilstm_layers or --feature_layers",
    f"run_squad.py {OUT} --do_predict --predict_file=x --export_dir=x": "--do_export",
    f"run_squad.py {OUT} --do_predict --predict_file=x --reset_head": "--do_train",
    f"run_squad.py {OUT} --do_predict": "--predict_file",
    f"run_squad.py {OUT} --do_train": "--train_file",
    f"run_squad.py {OUT} --do_predict --tune_null_threshold": "--version_2_with_negative",
    f"run_squad.py {OUT} --do_predict --null_score_diff_threshold=-1": "--version_2_with_negative or --do_export",
    f"run_squad.py {OUT} --evaluate_file=p.json": "--predict_file",
    f"{PRETRAINING} {OUT} --second_max_seq_length=512": "--second_input_file",
    f"{PRETRAINING} {OUT} --second_num_warmup_steps=3": "--second_learning_rate",
    f"{PRETRAINING} {OUT} --eval_steps=5": "--eval_input_file",
    f"{PRETRAINING} {OUT} --use_best_checkpoint": "--eval_input_file",
    f"run_pretraining.py --input_file={{file}} {OUT} --do_eval --eval_input_file=a": "--do_train",
    f"{PREPARATION} --language=de": "--split_sentences",
    f"{PREPARATION} --word_segmenter=jieba:lcut": "--do_whole_word_mask",
}


@pytest.mark.parametrize(
    ("command", "place", "found"),
    [
        *(
            (f"{program} --output_dir={output}", "--output_dir", found)
            for program in (CLASSIFIER, SQUAD, PRETRAINING)
            for output, found in (
                ("", "is required"),
                ("{file}", "{file} is not a directory"),
                ("{file}/x", "{file} is not a directory"),
                ("/proc/x", "/proc: no files can be created"),
            )
        ),
        *(
            (f"{program} {OUT} {flags}", place, found)
            for program in (CLASSIFIER, SQUAD, PRETRAINING)
            for flags, place, found in (
                ("--use_tpu", "--tpu_name", "missing. Pass local on a TPU VM"),
                ("--distribution_strategy=tpu", "--tpu_name", "missing"),
                ("--gradient_accumulation_steps=3", "--train_batch_size=32", "32 examples are not a multiple"),
                ("true", "unknown argument", "'true'. Write --name=value, --name or --noname"),
            )
        ),
        *(
            (command, command.rpartition(" ")[2].partition("=")[0], f"is used only with {needed}. Pass {needed} too")
            for command, needed in NEEDS.items()
        ),
        *((f"{program} {OUT} --num_train_epochs=0", "--num_train_epochs", "is 0.0") for program in (CLASSIFIER, SQUAD)),
        (
            f"{CLASSIFIER} {OUT} --sweep --sweep_batch_sizes=16 --gradient_accumulation_steps=3",
            *("--sweep_batch_sizes=16", "3"),
        ),
        (f"run_classifier.py --task_name=text --train_file={{file}} {OUT}", "No step is selected", "--do_train, "),
        (f"run_pretraining.py --input_file={{file}} {OUT}", "No step is selected", "--do_train, --do_eval or --do_exp"),
        (f"run_squad.py {OUT}", "No step is selected", "--do_predict, --interactive, --do_export or --evaluate_file"),
        (f"{CLASSIFIER} {OUT} --dev_file={{new}}", "--dev_file", "no file '{new}'"),
        (f"run_squad.py {OUT} --do_predict --predict_file={{new}}", "--predict_file", "no file '{new}'"),
        (f"run_squad.py {OUT} --do_train --train_file={{file}},{{new}}", "--train_file", "no file '{new}'"),
        (f"run_pretraining.py --do_train --input_file={{new}} {OUT}", "--input_file", "'{new}' matches no file"),
        (f"{PRETRAINING} {OUT} --eval_input_file={{new}}", "--eval_input_file", "'{new}' matches no file"),
        (f"{PRETRAINING} {OUT} --vocab_file={{new}}", "--vocab_file", "no file '{new}'"),
        (f"{PRETRAINING} {OUT} --recipe=lamb_64k", "--second_input_file", "--recipe"),
        (
            f"{PRETRAINING} {OUT} --num_train_epochs=2 --second_input_file=a",
            "--num_train_epochs",
            "--second_input_file",
        ),
        (
            f"run_classifier.py --task_name=ner {OUT} --do_train --feature_layers=-1 --features_dir={{file}}",
            *("--features_dir", "{file} is not a directory"),
        ),
        (
            f"run_classifier.py --task_name=ner {OUT} --do_train --original_format",
            "--original_format",
            "--task_name=ner",
        ),
        (
            f"run_classifier.py --task_name=text {OUT} --do_train --selection_metric=bleu",
            *("flag --selection_metric=bleu", "one of <accuracy|f1|macro_f1"),
        ),
        (
            f"run_squad.py {OUT} --evaluate_file=p.json --predict_file=q.json --do_export",
            *("--evaluate_file", "is not used with --do_export"),
        ),
        (f"{SQUAD} {OUT} --max_seq_length=64", "--max_query_length=64", "--max_seq_length=64 leaves no room for text"),
        (f"{SQUAD} {OUT} --do_export", "--export_dir", "is required"),
        ("-m bert_tf.predict --model=x --input_file={new}", "--input_file", "no file '{new}'"),
        ("extract_features.py --input_file={new} --init_checkpoint=x --output_file=y", "--input_file", "no file"),
        (
            "extract_features.py --input_file={file} --init_checkpoint=x --output_file={new} --use_tpu",
            *("--tpu_name", "missing. Pass local on a TPU VM"),
        ),
        (
            "extract_features.py --input_file={file} --init_checkpoint=x --output_file=/proc/x",
            *("--output_file", "/proc: no files can be created"),
        ),
        ("-m bert_tf.convert_checkpoint --input=x --output=/proc/x --format=hf", "--output", "/proc: no files can be"),
        ("-m bert_tf.export --model_dir=x --export_dir=/proc/x", "--export_dir", "/proc: no files can be created"),
        ("-m bert_tf.export --model_dir=x --export_dir=x.onnx", "--export_dir", "a directory is written, but x.onnx"),
        ("-m bert_tf.export --model_dir=x --export_dir=y true", "unknown argument", "'true'"),
        (f"{PREPARATION} --objective=ltr --masking_policy=1,0,0", "--masking_policy", "with --objective=ltr"),
        (f"{PREPARATION} --masking=dynamic --max_predictions_per_seq=9", "--max_predictions_per_seq", "--masking=dyn"),
        (f"{PREPARATION} --text_column=body", "--text_column", "JSON lines and Parquet"),
        (f"{PREPARATION} --do_lower_case=False", "--do_lower_case is False", "settings next to"),
        (
            "-m data_prep.build_vocab --input_file={file} --output_file={new} --text_column=x",
            "--text_column",
            "JSON lin",
        ),
        ("-m data_prep.build_vocab --input_file={file} --output_file={new} --max_words=0", "--max_words", "is 0"),
        ("-m data_prep.build_vocab --input_file={file} --output_file=/proc", "--output_file", "/proc is a "),
    ],
)
def test_a_wrong_flag_is_known_before_tensorflow_is_imported(tmp_path, command, place, found):
    names = {"file": tmp_path / "file", "new": tmp_path / "new", "vocab": tmp_path / "model" / "vocab.txt"}
    names["vocab"].parent.mkdir()
    names["file"].write_text("text\tlabel\na\tb\n")
    names["vocab"].write_text("\n".join(programs.PIECES))
    (tmp_path / "model" / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    command = [part for part in command.format(**names).split(" ") if part]
    output = programs.run(*command, expect=1, server=command_server.without_tensorflow)
    assert output.startswith(f"error: {place}") and found.format(**names) in output and output.count("\n") == 1
    assert not names["new"].exists()


def test_every_score_of_a_task_can_select_models():
    tasks = [
        *(registry.build_task(DataConfig(name, "."), "", True) for name in (*DEFINITIONS, "swag")),
        *(registry.build_task(DataConfig("text", ".", problem=p), "", True) for p in ("regression", "multi_label")),
        registry.build_task(DataConfig("text", "."), "", True),
        TaggingTask(DataConfig("ner"), {}, ["PER", "O"]),
    ]
    assert {name for task in tasks for name in task.metric_names} == set(METRICS)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Returns a function that makes a run on a custom data set. Tokenizing the data set fails the test."""
    config, vocab = programs.write_model_files(tmp_path)
    for name in ("train", "dev", "test"):
        (tmp_path / f"{name}.tsv").write_text("text\tlabel\na\tyes\nb\tno\n")

    def tokenize(*_):
        raise AssertionError("tokenized")

    monkeypatch.setattr(TaskData, "featurize", tokenize)

    def make(**settings):
        flags = {"bert_config_file": config, "vocab_file": vocab, "output_dir": str(tmp_path / "out")}
        flags |= {"max_seq_length": 12, "do_train": True, "do_eval": True, "do_predict": True} | settings
        task = registry.build_task(DataConfig("text", str(tmp_path)), "", flags["do_train"])
        return FinetuningRun(task, FinetuningConfig.from_flags(flags))

    return make


@pytest.mark.parametrize("split", ["dev", "test"])
@pytest.mark.parametrize("content", [None, "text\tlabel\na\tyes\nb\tmaybe\tno\n"])
def test_all_files_are_read_before_any_is_tokenized(run, tmp_path, split, content):
    path = tmp_path / f"{split}.tsv"
    path.unlink()
    if content:
        path.write_text(content)
    made = run()
    assert_refused(split, workflow.prepare, made)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"freeze_layers": 2}, "--freeze_layers=2: the model has only 1 layers"),
        ({"reinit_layers": 2}, "--reinit_layers=2: the model has only 1 layers"),
        ({"max_seq_length": 2000}, "--max_seq_length is 2000, but the model has only"),
        ({"do_train": False}, "--init_checkpoint is not given. Train first"),
    ],
)
def test_a_setting_that_does_not_fit_the_model_is_known_before_texts_are_tokenized(run, settings, message):
    with pytest.raises(InputError, match=message):
        made = run(**settings)
        workflow.finetune(made.task, made.settings, run=made)


def test_a_model_that_was_not_fine_tuned_is_known_before_texts_are_tokenized(run, tmp_path):
    write_model(tmp_path / "pretrained", BertEncoder(finished_runs.config()))
    checkpoint = str(tmp_path / "pretrained")
    saver.CheckpointSaver(str(tmp_path / "out"), 1).save(1, {"bert/x": 1.0})
    for directory, flag in (("new", "--init_checkpoint"), ("out", "--output_dir")):
        made = run(do_train=False, output_dir=str(tmp_path / directory), init_checkpoint=checkpoint)
        message = f"^{flag}: .* was not fine-tuned for this task[.] Add --do_train"
        assert_refused(message, workflow.finetune, made.task, made.settings, run=made)
    made = run(output_dir=str(tmp_path / "new"), init_checkpoint=checkpoint)  # the advice
    with pytest.raises(AssertionError, match="tokenized"):
        workflow.finetune(made.task, made.settings, run=made)


def test_what_is_probably_wrong_is_a_warning(capsys):
    second = SecondSchedule(1, 2.25)
    for make, rate in (
        (lambda: OptimizerConfig(learning_rate=2.0), "learning_rate=2.0"),
        (lambda: OptimizerConfig(num_train_steps=2, second_schedule=second), "second_learning_rate=2.25"),
        (
            lambda: FinetuningConfig(trials=TrialsConfig(sweep=True, sweep_learning_rates=(1e-3, 2.5))),
            "sweep_learning_rates=2.5",
        ),
        (lambda: OptimizerConfig(learning_rate=optimization.HIGHEST_LEARNING_RATE), None),
    ):
        make()
        warned = capsys.readouterr().err
        assert warned.count("Warning: ") == (rate is not None)
        assert rate is None or f"Warning: --{rate}: training will probably diverge" in warned
    for stride, longest in ((200, None), (300, 81), (384, 0)):
        SquadConfig(doc_stride=stride, max_query_length=81 + (stride == 300)).check_lengths()
        warned = capsys.readouterr().err
        expected = f"--doc_stride={stride}: windows do not overlap if questions have {longest} or more tokens. Use a"
        assert (expected in warned) == (longest is not None)
