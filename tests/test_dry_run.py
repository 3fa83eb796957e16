"""A dry run gives the same error messages and the same numbers as a real run."""

import json
import re

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.distribution import strategies
from bert_tf.encoder import BertEncoder
from bert_tf.finetuning.finetune import finetune
from bert_tf.finetuning.finetuning_config import FinetuningConfig
from bert_tf.finetuning.models import ClassifierModel, SpanModel
from bert_tf.model import estimates
from bert_tf.pretraining.model import PretrainingModel
from bert_tf.runtime import dry_run as dry_run_mode, path_checks
from bert_tf.runtime.storage import remote
from bert_tf.tasks import registry
from bert_tf.tasks.data_config import DataConfig
from bert_tf.training import log
from bert_tf.training.settings import TrainingConfig
from tests import finished_runs, programs
from tests.conftest import ROOT
from tests.documentation import small_data

pytestmark = [pytest.mark.eager, pytest.mark.plain]

# Flags: model files, settings of every program, and data of each program. {d} is the directory of the inputs, {out} is
# the output directory.
MODEL = "--vocab_file={d}/vocab.txt --bert_config_file={d}/config.json"
SHORT = f"{MODEL} --max_seq_length=12 --output_dir={{out}}"
PRETRAIN = f"run_pretraining.py {SHORT} --max_predictions_per_seq=3 --num_train_steps=4 --num_warmup_steps=1"
ANY = "run_classifier.py --task_name=text --max_seq_length=12"
CLASSIFY = f"run_classifier.py {SHORT} --task_name=text"
SQUAD = f"run_squad.py {SHORT} --max_query_length=4 --doc_stride=4"
RECORDS, TABLE = "--input_file={d}/records --do_train", "--data_dir={d}/table --do_train"
HELD_OUT = f"{RECORDS} --eval_input_file={{d}}/records"
QUESTIONS, ASKED = "--train_file={d}/squad.json --do_train", "--do_predict --predict_file={d}/squad.json"
TAGS = "--task_name=ner --data_dir={d}/conll2003 --do_train --num_train_steps=1 --train_batch_size=8"
ONE_EPOCH = "--num_train_epochs=1 --train_batch_size=8"
TWO_WORKERS = {"cluster": {"worker": ["host1:1", "host2:1"]}, "task": {"type": "worker", "index": 1}}


def table(labels):
    return "text\tlabel\n" + "".join(f"a b {letter}\t{label}\n" for letter in "cdefgh" for label in labels)


def squad(paragraphs):
    return json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]})


QUESTION = {"question": "b", "answers": [{"text": "c", "answer_start": 4}]}
TEXTS = {
    "large.txt": "\n".join([*programs.PIECES, "more"]) + "\n",
    "broken": '{"vocab_size": 36,',
    "unknown": '{"vocab_size": 36, "hiden_size": 12}',
    "empty": "",
    **{f"{name}/{split}.tsv": table("xy") for name in ("table", "bad_dev") for split in ("train", "dev", "test")},
    "bad_dev/dev.tsv": "text\tlabel\na b\tz\n",
    "no_dev/train.tsv": table("xy"),
    "one_class/train.tsv": table("xx"),
    "no_rows/train.tsv": table(""),
    "no_text.tsv": "sentence\na b\n",
    "squad.json": squad([{"context": "a b c d e f g", "qas": [{"id": str(i), **QUESTION} for i in range(6)]}]),
    "bad_squad.json": squad([{"context": "a"}]),
    "answers.json": json.dumps({str(i): "c" for i in range(6)}),
    "full/file": "",
    "only/bert_config.json": finished_runs.config().to_json_string(),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    d = tmp_path_factory.mktemp("files")
    small_data.write_files(d)
    programs.write_model_files(d)
    for name, text in TEXTS.items():
        (d / name).parent.mkdir(exist_ok=True)
        (d / name).write_text(text)
    programs.write_pretraining_data(d / "records")
    programs.write_pretraining_data(d / "long", length=16)
    config = finished_runs.config()
    finished_runs.write_model(d / "encoder", BertEncoder(config))
    finished_runs.write_model(d / "wide", BertEncoder(config.replace(hidden_size=24)))
    text = {"task": "text", "problem": "classification", "labels": ["x", "y"]}
    finished_runs.write_run(d / "text_run", ClassifierModel(config, 2), **text)
    (d / "text_run" / "labels.json").write_text('["x", "y"]')
    finished_runs.write_run(d / "squad_run", SpanModel(config), task="squad")
    finished_runs.write_run(d / "pretrained", PretrainingModel(config), objective="mlm_nsp")
    return d


def contents(*folders):
    """Returns the files in some directories, with their contents."""
    return {path: path.is_file() and path.read_bytes() for folder in folders for path in folder.rglob("*")}


def dry_run(command, d, tmp_path, expect=0, **options):
    """Runs a command with --dry_run, checks that nothing was written, and returns the output."""
    before = contents(d, tmp_path)
    output = programs.run(*command, "--dry_run", expect=expect, **options)
    assert contents(d, tmp_path) == before
    assert ("Dry run: no errors were found." in output) == (expect == 0)
    return output


UNTRAINED = "--init_checkpoint: {d}/encoder/bert_model.ckpt was not fine-tuned for this task"
# Commands, and the start of the message. The output directory does not exist, unless the command names one.
# `test_start_checks` has errors that do not need TensorFlow.
WRONG = {
    f"{CLASSIFY} {TABLE} --vocab_file={{d}}/large.txt": "--vocab_file ({d}/large.txt) has 42 entries, but the",
    f"{PRETRAIN} {RECORDS} --vocab_file={{d}}/large.txt": "--vocab_file ({d}/large.txt) has 42 entries, but the",
    f"{PRETRAIN} {RECORDS} --max_seq_length=64": "--max_seq_length is 64, but the model has only 32 positions",
    f"{ANY} {TABLE} --output_dir={{out}}": "--bert_config_file is missing: there is no such file in",
    f"{ANY} {TABLE} --output_dir={{d}}/only": "--vocab_file is missing: there is no such file in {d}/only",
    f"{CLASSIFY} {TABLE} --bert_config_file={{d}}/broken": "--bert_config_file: {d}/broken",
    f"{PRETRAIN} {RECORDS} --bert_config_file={{d}}/unknown": "--bert_config_file ({d}/unknown): Object contains",
    f"{CLASSIFY} {TABLE} --init_checkpoint={{d}}/wide/bert_model.ckpt": "--init_checkpoint: {d}/wide/bert_model.ckpt",
    f"{PRETRAIN} {RECORDS} --init_checkpoint={{d}}/no": "--init_checkpoint: there is no check",
    f"{PRETRAIN} --do_train --input_file={{d}}/empty": "--input_file: '{d}/empty",
    f"{PRETRAIN} --do_train --input_file={{d}}/long": "--input_file: {d}/long, record 1: input_ids has 16 numbers",
    f"{PRETRAIN} {RECORDS} --max_predictions_per_seq=2": "--input_file: {d}/records, record 1: masked_lm_positions has",
    f"{PRETRAIN} {RECORDS} --eval_input_file={{d}}/long": "--eval_input_file: {d}/long, record 1",
    f"{PRETRAIN} {HELD_OUT} --eval_batch_size=64": "--eval_input_file: {d}/records has fewer examples than --eval",
    f"{CLASSIFY} {TABLE} --max_seq_length=64": "--max_seq_length is 64, but the model has only 32 positions",
    f"{PRETRAIN} {RECORDS} --freeze_layers=9": "--freeze_layers=9: the model has",
    f"{CLASSIFY} {TABLE} --num_train_epochs=0.1": "--num_train_epochs=0.1 of 12 examples",
    f"{CLASSIFY} {TABLE} --output_dir={{d}}/text_run": "--output_dir: {d}/text_run: the run began with other settings",
    f"{CLASSIFY} {TABLE} --output_dir=gs://no-bucket/x": "--output_dir: gs://no-bucket",
    f"{PRETRAIN} {RECORDS} --output_dir=no://x/y": "--output_dir: no://x/y: File system scheme",
    f"{CLASSIFY} --task_name=MRPC --data_dir={{d}}/full --do_train": "--data_dir: there is no file '{d}/full/train",
    f"{CLASSIFY} --data_dir={{d}}/bad_dev --do_train --do_eval": "{d}/bad_dev/dev.tsv, line 2: the label 'z'",
    f"{CLASSIFY} --data_dir={{d}}/no_dev --do_train --do_eval": "there is no dev file",
    f"{CLASSIFY} {TABLE} --do_predict --test_file={{d}}/no_text.tsv": "{d}/no_text.tsv",
    f"{CLASSIFY} --data_dir={{d}}/one_class --do_train": "{d}/one_class/train.tsv: every row has the label",
    f"{CLASSIFY} --data_dir={{d}}/no_rows --do_train": "{d}/no_rows/train.tsv",
    f"{CLASSIFY} --data_dir={{d}}/table --do_predict --init_checkpoint={{d}}/encoder": UNTRAINED,
    f"{SQUAD} --train_file={{d}}/bad_squad.json --do_train": "--train_file: {d}/bad",
    f"{SQUAD} {ASKED} --ensemble_dirs={{d}}/squad_run,{{d}}/full": "--ensemble_dirs",
    f"{CLASSIFY} {TABLE} --bilstm_layers=1 --do_export --export_dir={{out}}/e": "--do_export: a model with a BiLSTM",
    f"{CLASSIFY} {TABLE} --do_eval --sweep --sweep_batch_sizes=6,24 --sweep_epochs=0.5": "--num_train_epochs=0.5 of 12",
    f"{CLASSIFY} --do_export --export_dir={{d}}/e --output_dir={{d}}/full": "",
}


@pytest.mark.parametrize("command", WRONG, ids=WRONG.get)
def test_a_wrong_set_up_is_found_with_the_message_of_the_real_run(files, tmp_path, command):
    message = WRONG[command].format(d=files)
    command = command.format(d=files, out=tmp_path / "out").split()
    output = dry_run(command, files, tmp_path, expect=1)
    assert f"error: {message}" in output
    real = programs.run(*command, expect=1)
    assert output[output.index("error: ") :] in real and "Traceback" not in real


TPU = "--use_tpu --tpu_name=slice"
WITHOUT = "import runpy, sys; sys.modules['{}'] = None; runpy.run_path(sys.argv.pop(1), run_name='__main__')"


@pytest.mark.parametrize(
    ("missing", "command", "message"),
    [
        ("tf2onnx", f"{CLASSIFY} {TABLE} --do_export --export_onnx --export_dir={{d}}/e", "--export_onnx: tf2onnx is"),
        ("official", f"{SQUAD} {QUESTIONS} {ASKED}", "tf-models-official is not installed"),
        (None, f"{PRETRAIN} {RECORDS} {TPU} --num_tpu_cores=5", "Use a multiple of the 5 replicas."),
        (
            None,
            f"{PRETRAIN} {RECORDS} {TPU} --num_tpu_cores=8 --gradient_accumulation_steps=8",
            "a replica's 4",
        ),
        (None, f"{CLASSIFY} {TABLE} {TPU}", "--tpu_name: the TPU 'slice' has several hosts, or"),
    ],
)
def test_missing_libraries_and_unsuitable_tpus_are_found(files, tmp_path, missing, command, message):
    launcher = ["-c", WITHOUT.format(missing)] if missing else []
    command = [*launcher, *command.format(d=files, out=tmp_path / "out").split()]
    assert message in dry_run(command, files, tmp_path, expect=1)


RIGHT = {
    "pre-training": f"{PRETRAIN} {HELD_OUT} --do_eval --eval_steps=4 --max_eval_steps=1",
    "pre-training in two phases": f"{PRETRAIN} {RECORDS} --second_input_file={{d}}/long --second_max_seq_length=16 "
    "--second_max_predictions_per_seq=3 --second_phase_proportion=0.5 --second_train_batch_size=16 --objective=mlm "
    "--second_gradient_accumulation_steps=2 --train_batch_size=8 --freeze_layers=0 --num_train_steps=2",
    "continued pre-training": f"{PRETRAIN} {RECORDS} --init_checkpoint={{d}}/pretrained --num_train_epochs=2",
    "classification": f"{CLASSIFY} --data_dir={{d}}/examples/authors --do_train --do_eval {ONE_EPOCH} "
    "--init_checkpoint={d}/encoder",
    "GLUE": f"{CLASSIFY} --task_name=WNLI --data_dir={{d}}/glue/WNLI --do_train --do_eval --do_predict {ONE_EPOCH} "
    "--do_export --export_dir={out}_exported --noexport_text",
    "tagging": f"{CLASSIFY} {TAGS} --gradient_accumulation_steps=2",
    "feature-based tagging": f"{CLASSIFY} {TAGS} --feature_layers=-1 --init_checkpoint={{d}}/encoder --bilstm_units=4 "
    "--features_dir={out}_features",
    "multiple choice": f"{CLASSIFY} --task_name=swag --data_dir={{d}}/swag --do_train {ONE_EPOCH}",
    "questions": f"{SQUAD} {QUESTIONS} {ASKED} --train_batch_size=2",
    "questions, one file after another": f"{SQUAD} --train_file={{d}}/squad.json,{{d}}/squad.json --do_train "
    "--train_batch_size=3 --num_train_epochs=1",
    "padded sequences": f"{CLASSIFY} {TABLE} --pad_to_max_seq_length {ONE_EPOCH}",
    "sweep": f"{CLASSIFY} {TABLE} --do_eval --sweep --sweep_batch_sizes=12 --sweep_epochs=1 --num_restarts=2 "
    "--sweep_learning_rates=1e-3",
}


def printed(output, name):
    """Returns the values that a dry run prints as NAME = VALUE."""
    return [float(value.replace(",", "")) for value in re.findall(rf"^  {name} = ([\d.,e+-]+)", output, re.MULTILINE)]


def logged(folder):
    """Returns the number of steps in a run's log, and the total tokens and operations of these steps."""
    lines = [line for line in log.read_metrics(str(folder)) if line["kind"] == "train"]
    return lines[-1]["step"], sum(line["tokens"] for line in lines), sum(line["teraflops"] for line in lines)


@pytest.mark.parametrize("name", RIGHT)
def test_the_numbers_of_a_right_set_up_are_those_of_the_real_run(files, tmp_path, name):
    out = tmp_path / "out"
    command = f"{RIGHT[name]} --log_steps=1".format(d=files, out=out).split()
    output = dry_run(command, files, tmp_path)
    real = programs.run(*command)
    parameters = re.findall(r"Parameters: .*", output)
    assert parameters and set(parameters) == set(re.findall(r"Parameters: .*", real))
    folders = [*out.glob("stage_*"), out] if (out / "metrics.jsonl").exists() else sorted(out.glob("trials/*"))[:1]
    steps, tokens, teraflops = zip(*map(logged, folders), strict=True)
    assert printed(output, "Steps") == list(steps)
    assert printed(output, "Tokens") == list(tokens)
    np.testing.assert_allclose(printed(output, "TFLOPs"), teraflops, rtol=1e-3)


@pytest.mark.parametrize(
    "command",
    [
        "run_classifier.py --task_name=text --data_dir={d}/table --output_dir={d}/text_run --max_seq_length=12"
        " --do_eval --do_predict --do_export --export_dir={out}",
        f"{PRETRAIN} --input_file={{d}}/records --do_eval --output_dir={{d}}/pretrained",
        "run_squad.py --output_dir={d}/squad_run --max_seq_length=12 --max_query_length=4 --doc_stride=4 --do_predict"
        " --predict_file={d}/squad.json --interactive",
        "run_squad.py --output_dir={d}/squad_run --predict_file={d}/squad.json --evaluate_file={d}/answers.json",
    ],
)
def test_a_finished_run_is_only_loaded(files, tmp_path, command):
    output = dry_run(command.format(d=files, out=tmp_path / "out").split(), files, tmp_path)
    assert "Dry run (" not in output
    assert ("Loaded " in output) == ("evaluate_file" not in command)


def test_a_complete_run_is_left_as_it_is(files, tmp_path):
    command = f"{PRETRAIN} {RECORDS}".format(d=files, out=tmp_path / "out").split()
    programs.run(*command)
    output = dry_run(command, files, tmp_path)
    assert "is already complete (step 4 of 4)" in output and "Steps = " not in output


@pytest.mark.parametrize(
    ("flags", "devices"),
    [
        (f"{TPU} --num_tpu_cores=8 --dtype=bfloat16", "8 TPU cores"),
        ("--use_tpu --tpu_name=local", "1 TPU core (--num_tpu_cores is not given)"),
        ("--distribution_strategy=multi_worker", "2 CPUs (2 workers; each is assumed to be like this one)"),
    ],
)
def test_neither_a_tpu_nor_other_workers_are_needed(files, tmp_path, flags, devices):
    command = f"{PRETRAIN} {RECORDS} {flags}".format(d=files, out=tmp_path / "out").split()
    environment = {"TF_CONFIG": json.dumps(TWO_WORKERS)} if "multi" in flags else {}
    output = dry_run(command, files, tmp_path, environment=environment)
    assert f"  Devices = {devices}\n" in output
    assert ("benchmarks.tpu_compile" in output) == ("TPU" in devices)


def test_rows_are_those_of_the_real_run(files, tmp_path, monkeypatch, capsys):
    flags = {"output_dir": str(tmp_path / "out"), "max_seq_length": 12, "do_train": True, "train_batch_size": 6}
    flags |= {"bert_config_file": str(files / "config.json"), "vocab_file": str(files / "vocab.txt")}
    shapes, make = [], strategies.batches

    def run():
        config = FinetuningConfig.from_flags(flags)
        finetune(registry.build_task(DataConfig("text", str(files / "table")), "", True), config)

    def batches(*arguments):
        for batch in make(*arguments):
            shapes.append(batch["input_ids"].shape)
            yield batch

    with dry_run_mode.guard(True):
        run()
    rows, length = map(float, re.search(r"  ([\d.]+) x ([\d.]+)  ", capsys.readouterr().err).groups())
    monkeypatch.setattr(strategies, "batches", batches)
    run()
    shapes = np.array(shapes[:6])
    assert len(shapes) == 6 and rows == shapes[:, 0].mean()
    assert length == pytest.approx(shapes.prod(axis=1).sum() / shapes[:, 0].sum(), rel=1e-3)


def test_the_directory_at_a_url_is_checked_and_left_as_it_is():
    remote.call("makedirs", "ram://checked/runs")
    path_checks.check_output_directory("ram://checked/runs/new/run", "--output_dir")
    assert remote.call("listdir", "ram://checked/runs") == []


def test_the_memory_is_that_of_the_documentation():
    # The number of weights for the released sizes, with a vocabulary of 30,522 and the pre-training heads.
    parameters = {"Base": 110_106_428, "Large": 336_226_108}
    page = (ROOT / "docs" / "results" / "tpu-estimates.md").read_text()
    rows = re.findall(r"^\| (Base|Large) \| (.+) \| \d\.[\d.]+ \| .+ \| ([\d.]+) \| [\d.]+% \|$", page, re.MULTILINE)
    assert len(rows) == len(re.findall(r"^\| (?:Base|Large) \|", page, re.MULTILINE)) > 0
    for size, flags, documented in rows:
        if flags != "the same":
            length, batch, recomputes = re.search(r"--length=(\d+) --batch=(\d+)( --recompute)?`", flags).groups()
        model = BertConfig.named(size.lower()), parameters[size], parameters[size]
        shape = int(batch), int(length)
        found = estimates.memory_gib(*model, *shape, "bfloat16", bool(recomputes), int(length) < 256)
        assert f"{found:.1f}" == documented


@pytest.mark.parametrize(
    ("name", "dtype", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989.0),
        ("Tesla V100-SXM2-16GB", "float32", 15.7),
        ("Tesla V100-SXM2-16GB", "bfloat16", 0.0),
        ("NVIDIA A100-SXM4-40GB", "float16", 312.0),
        ("NVIDIA GH200 480GB", "float16", 0.0),
    ],
)
def test_the_log_reports_the_utilisation_of_known_gpus(monkeypatch, name, dtype, peak):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["gpu"])
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda gpu: {"device_name": name})
    monkeypatch.setattr(strategies, "devices", lambda strategy: {"device": "GPU"})
    for config, expected in ((TrainingConfig(dtype=dtype), peak), (TrainingConfig(peak_tflops=3.0), 3.0)):
        assert log.with_known_peak(config, tf.distribute.get_strategy()).peak_tflops == expected
