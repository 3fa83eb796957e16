"""Errors that can be detected at the start appear before TensorFlow is imported, or before texts are tokenized."""

import pytest

from bert_tf.checkpoints import saver
from bert_tf.encoder import BertEncoder
from bert_tf.finetuning.finetune import finetune
from bert_tf.finetuning.finetuning_config import FinetuningConfig, TrialsConfig
from bert_tf.finetuning.run import FinetuningRun
from bert_tf.finetuning.task import TaskData
from bert_tf.optimization import settings as optimization
from bert_tf.optimization.settings import OptimizerConfig, SecondSchedule
from bert_tf.tasks import registry
from bert_tf.tasks.data_config import METRICS, DataConfig
from bert_tf.tasks.sentences.glue import DEFINITIONS
from bert_tf.tasks.sentences.similarity import SimilarityExample
from bert_tf.tasks.squad.rules import SquadConfig
from bert_tf.tasks.tagging.tagging_task import TaggingTask
from tests import command_server, finished_runs, programs
from tests.conftest import assert_refused

TRAINING = ("run_classifier.py", "run_squad.py", "run_pretraining.py")
OUT = "--output_dir={new}"
# Commands without data or steps, and commands that train.
TEXT, NER = (f"run_classifier.py --task_name={name} {OUT}" for name in ("text", "ner"))
SQUAD = f"run_squad.py {OUT}"
CLASSIFIER = "run_classifier.py --task_name=text --train_file={file} --do_train"
QUESTIONS = "run_squad.py --train_file={file} --do_train"
PRETRAINING = "run_pretraining.py --input_file={file} --do_train"
FEATURES = "extract_features.py --init_checkpoint=x"
PREPARATION = "-m data_prep.create_pretraining_data --input_file={file} --output_file={new} --vocab_file={vocab}"
VOCABULARY = "-m data_prep.build_vocab --input_file={file}"
EXPORT = "-m bert_tf.export --model_dir=x"

# Commands whose last flag has an effect only with another flag.
NEEDS = {
    f"run_classifier.py --task_name=rte {OUT} --sweep_epochs=2": "--sweep",
    f"run_classifier.py --task_name=rte {OUT} --reset_head": "--do_train",
    f"{NER} --feature_combination=concat": "--feature_layers",
    f"run_classifier.py --task_name=cola {OUT} --do_train --bilstm_units=8": "--bilstm_layers or --feature_layers",
    f"{SQUAD} --do_predict --predict_file=x --export_dir=x": "--do_export",
    f"{SQUAD} --do_predict --predict_file=x --reset_head": "--do_train",
    f"{SQUAD} --do_predict": "--predict_file",
    f"{SQUAD} --do_train": "--train_file",
    f"{SQUAD} --do_predict --tune_null_threshold": "--version_2_with_negative",
    f"{SQUAD} --do_predict --null_score_diff_threshold=-1": "--version_2_with_negative or --do_export",
    f"{SQUAD} --evaluate_file=p.json": "--predict_file",
    f"{PRETRAINING} {OUT} --second_max_seq_length=512": "--second_input_file",
    f"{PRETRAINING} {OUT} --second_num_warmup_steps=3": "--second_learning_rate",
    f"{PRETRAINING} {OUT} --eval_steps=5": "--eval_input_file",
    f"{PRETRAINING} {OUT} --use_best_checkpoint": "--eval_input_file",
    f"run_pretraining.py --input_file={{file}} {OUT} --do_eval --eval_input_file=a": "--do_train",
    f"{PREPARATION} --language=de": "--split_sentences",
    f"{PREPARATION} --word_segmenter=jieba:lcut": "--do_whole_word_mask",
}
# Flags of each program that trains, with the start of the message and later words.
OF_TRAINING = {
    "--output_dir=": "--output_dir ... is required",
    "--output_dir={file}": "--output_dir ... {file} is not a directory",
    "--output_dir={file}/x": "--output_dir ... {file} is not a directory",
    "--output_dir=/proc/x": "--output_dir ... /proc: no files can be created",
    f"{OUT} --use_tpu": "--tpu_name ... missing. Pass local on a TPU VM",
    f"{OUT} --distribution_strategy=tpu": "--tpu_name ... missing",
    f"{OUT} --tpu_name=local": "--tpu_name ... is used only with --use_tpu",
    f"{OUT} --distribution_strategy=multi_worker": "--distribution_strategy=multi_worker",
    f"{OUT} --gradient_accumulation_steps=3": "--train_batch_size=32 ... 32 examples are not a multiple",
    f"{OUT} --learning_rat=1": "Unknown command line flag 'learning_rat'",
    f"{OUT} true": "unknown argument ... 'true'. Write --name=value, --name or --noname",
}
WRONG = {
    f"{program} {flags}": message
    for program in (CLASSIFIER, QUESTIONS, PRETRAINING)
    for flags, message in OF_TRAINING.items()
}
WRONG |= {
    command: f"{command.rpartition(' ')[2].partition('=')[0]} ... is used only with {needed}. Pass {needed} too"
    for command, needed in NEEDS.items()
}
WRONG |= {
    f"{CLASSIFIER} {OUT} --num_train_epochs=0": "--num_train_epochs ... is 0.0",
    f"{QUESTIONS} {OUT} --num_train_epochs=0": "--num_train_epochs ... is 0.0",
    f"{CLASSIFIER} {OUT} --sweep --sweep_batch_sizes=4 --gradient_accumulation_steps=3": "--sweep_batch_sizes=4 ... 3",
    f"{TEXT} --train_file={{file}}": "No step is selected ... --do_train, ",
    f"run_pretraining.py --input_file={{file}} {OUT}": "No step is selected ... --do_train, --do_eval or --do_exp",
    f"{SQUAD}": "No step is selected ... --do_predict, --interactive, --do_export or --evaluate_file",
    f"run_classifier.py --task_name=texts {OUT} --do_train": "--task_name",
    f"{CLASSIFIER} {OUT} --dev_file={{new}}": "--dev_file ... no file '{new}'",
    f"{CLASSIFIER} {OUT} --do_predict --test_file={{new}}": "--test_file ... no file '{new}'",
    f"{SQUAD} --do_predict --predict_file={{new}}": "--predict_file ... no file '{new}'",
    f"{SQUAD} --do_train --train_file={{file}},{{new}}": "--train_file ... no file '{new}'",
    f"run_pretraining.py --do_train --input_file={{new}} {OUT}": "--input_file ... '{new}' matches no file",
    f"{PRETRAINING} {OUT} --eval_input_file={{new}}": "--eval_input_file ... '{new}' matches no file",
    f"{PRETRAINING} {OUT} --vocab_file={{new}}": "--vocab_file ... no file '{new}'",
    f"{PRETRAINING} {OUT} --recipe=lamb_64k": "--second_input_file ... --recipe",
    f"{PRETRAINING} {OUT} --num_train_epochs=2 --second_input_file=a": "--num_train_epochs ... --second_input_file",
    f"{NER} --do_train --feature_layers=-1 --features_dir={{file}}": "--features_dir ... {file} is not a directory",
    f"{NER} --do_train --original_format": "--original_format ... --task_name=ner",
    f"{TEXT} --do_train --selection_metric=bleu": "flag --selection_metric=bleu ... one of <accuracy|f1|macro_f1",
    f"{SQUAD} --evaluate_file=p --predict_file=q --do_export": "--evaluate_file ... is not used with --do_export",
    f"{QUESTIONS} {OUT} --max_seq_length=64": "--max_query_length=64 ... --max_seq_length=64 leaves no room for text",
    f"{QUESTIONS} {OUT} --do_export": "--export_dir ... is required",
    f"{CLASSIFIER} {OUT} --do_export --export_dir={{old}}": "--export_dir: {old} already",
    "-m bert_tf.predict --model=x --input_file={new}": "--input_file ... no file '{new}'",
    f"{FEATURES} --input_file={{new}} --output_file=y": "--input_file ... no file",
    f"{FEATURES} --input_file={{file}} --output_file={{new}} --use_tpu": "--tpu_name ... missing. Pass local",
    f"{FEATURES} --input_file={{file}} --output_file={{new}} --master=grpc://a": "--master ... --use_tpu",
    f"{FEATURES} --input_file={{file}} --output_file=/proc/x": "--output_file ... /proc: no files can be created",
    "-m bert_tf.convert_checkpoint --input=x --output=/proc/x --format=hf": "--output ... /proc: no files can be",
    f"{EXPORT} --export_dir=/proc/x": "--export_dir ... /proc: no files can be created",
    f"{EXPORT} --export_dir=x.onnx": "--export_dir ... the output is a directory, but x.onnx",
    "-m bert_tf.fill_mask --model=x true": "unknown argument ... 'true'",
    f"{EXPORT} --export_dir=y true": "unknown argument ... 'true'",
    f"{PREPARATION} --objective=ltr --masking_policy=1,0,0": "--masking_policy ... with --objective=ltr",
    f"{PREPARATION} --masking=dynamic --max_predictions_per_seq=9": "--max_predictions_per_seq ... --masking=dyn",
    f"{PREPARATION} --output_file={{new}},{{new}}2 --num_shards=2": "--num_shards ... --output_file has 2 files",
    f"{PREPARATION} --output_file={{new}},{{new}}": "--output_file ... has a file twice",
    f"{PREPARATION} --text_column=body": "--text_column ... JSON lines and Parquet",
    f"{PREPARATION} --do_lower_case=False": "--do_lower_case is False ... settings next to",
    f"{VOCABULARY} --output_file={{new}} --text_column=x": "--text_column ... JSON lin",
    f"{VOCABULARY} --output_file={{new}} --max_words=0": "--max_words ... is 0",
    f"{VOCABULARY} --output_file=/proc": "--output_file ... /proc is a ",
}


@pytest.mark.parametrize("command", WRONG)
def test_a_wrong_flag_is_known_before_tensorflow_is_imported(write, tmp_path, command):
    """A dry run gives the same message."""
    names = {"file": write("file", "text\tlabel\na\tb\n"), "old": tmp_path / "model", "new": tmp_path / "new"}
    names["vocab"] = write("model/vocab.txt", "\n".join(programs.PIECES))
    write("model/tokenizer_config.json", '{"do_lower_case": true}')
    start, _, words = WRONG[command].format(**names).partition(" ... ")
    command = [part for part in command.format(**names).split(" ") if part]
    for more in [[], ["--dry_run"]] if command[0] in TRAINING else [[]]:
        output = programs.run(*command, *more, expect=1, server=command_server.without_tensorflow)
        assert output.startswith(f"error: {start}") and words in output and output.count("\n") == 1
    assert not names["new"].exists()


def test_every_score_of_a_task_can_select_models():
    tasks = [
        *(registry.build_task(DataConfig(name, "."), "", True) for name in (*DEFINITIONS, "swag")),
        *(registry.build_task(DataConfig("text", ".", problem=p), "", True) for p in ("regression", "multi_label")),
        registry.build_task(DataConfig("text", "."), "", True),
        TaggingTask(DataConfig("ner"), {}, ["PER", "O"]),
        registry.build_task(DataConfig("similarity"), "", True, examples={"train": [SimilarityExample("0", "a", "b")]}),
    ]
    assert {name for task in tasks for name in task.metric_names} == set(METRICS)


@pytest.fixture
def prepare(tmp_path, monkeypatch):
    """Returns a function that starts a run on a custom data set. Tokenizing the data set fails the test."""
    config, vocab = programs.write_model_files(tmp_path)
    for name in ("train", "dev", "test"):
        (tmp_path / f"{name}.tsv").write_text("text\tlabel\na\tyes\nb\tno\n")

    def tokenize(*_):
        raise AssertionError("tokenized")

    monkeypatch.setattr(TaskData, "featurize", tokenize)

    def prepare(**settings):
        flags = {"bert_config_file": config, "vocab_file": vocab, "output_dir": str(tmp_path / "out")}
        flags |= {"max_seq_length": 12, "do_train": True, "do_eval": True, "do_predict": True} | settings
        task = registry.build_task(DataConfig("text", str(tmp_path)), "", flags["do_train"])
        made = FinetuningRun(task, FinetuningConfig.from_flags(flags))
        finetune(task, made.settings, run=made)

    return prepare


TWO_LABELS = "text\tlabel\na\tyes\nb\tmaybe\tno\n"


@pytest.mark.parametrize(
    ("files", "settings", "message"),
    [
        *(({f"{split}.tsv": text}, {}, split) for split in ("dev", "test") for text in (None, TWO_LABELS)),
        ({}, {"freeze_layers": 2}, "--freeze_layers=2: the model has only 1 layers"),
        ({}, {"reinit_layers": 2}, "--reinit_layers=2: the model has only 1 layers"),
        ({}, {"max_seq_length": 2000}, "--max_seq_length is 2000, but the model has only"),
        ({}, {"do_train": False}, "--init_checkpoint is not given. Train first"),
    ],
)
def test_a_bad_file_or_setting_is_known_before_texts_are_tokenized(prepare, tmp_path, files, settings, message):
    for name, text in files.items():
        (tmp_path / name).unlink()
        if text:
            (tmp_path / name).write_text(text)
    assert_refused(message, prepare, **settings)


def test_a_model_that_was_not_fine_tuned_is_known_before_texts_are_tokenized(prepare, tmp_path):
    checkpoint = str(tmp_path / "pretrained")
    finished_runs.write_model(tmp_path / "pretrained", BertEncoder(finished_runs.config()))
    saver.CheckpointSaver(str(tmp_path / "out"), 1).save(1, {"bert/x": 1.0})
    for name, flag in (("new", "--init_checkpoint"), ("out", "--output_dir")):
        settings = {"output_dir": str(tmp_path / name), "init_checkpoint": checkpoint}
        message = f"^{flag}: .* was not fine-tuned for this task[.] Add --do_train"
        assert_refused(message, prepare, do_train=False, **settings)
    with pytest.raises(AssertionError, match="tokenized"):  # the advice works
        prepare(output_dir=str(tmp_path / "new"), init_checkpoint=checkpoint)


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
