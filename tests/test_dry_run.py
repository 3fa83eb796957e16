"""A dry run gives the same error messages and the same numbers as a real run."""

import json
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import checkpoints
from bert_tf.config import BertConfig
from bert_tf.distribution import strategies
from bert_tf.encoder import BertEncoder
from bert_tf.finetuning import workflow
from bert_tf.finetuning.finetuning_config import FinetuningConfig
from bert_tf.finetuning.models import ClassifierModel, SpanModel
from bert_tf.model import estimates
from bert_tf.pretraining.model import PretrainingModel
from bert_tf.runtime import files as runtime_files, remote
from bert_tf.runtime.errors import InputError
from bert_tf.tasks import registry
from bert_tf.tasks.data_config import DataConfig
from bert_tf.training import log
from bert_tf.training.settings import TrainingConfig
from tests import finished_runs, programs
from tests.conftest import ROOT, data_path

pytestmark = [pytest.mark.eager, pytest.mark.plain]

# Flags: model files, settings of every program, and data of each program.
MODEL = "--vocab_file={d}/vocab.txt --bert_config_file={d}/config.json"
SHORT = f"{MODEL} --max_seq_length=12 --output_dir={{out}}"
PRETRAIN = f"run_pretraining.py {SHORT} --max_predictions_per_seq=3 --num_train_steps=4 --num_warmup_steps=1"
CLASSIFY = f"run_classifier.py {SHORT} --task_name=text"
SQUAD = f"run_squad.py {SHORT} --max_query_length=4 --doc_stride=4"
RECORDS, TABLE = "--input_file={d}/train.tfrecord --do_train", "--data_dir={d}/table --do_train"
QUESTIONS = "--train_file={d}/squad.json --do_train"
TRAINED = "run_classifier.py --task_name=text --data_dir={d}/table --output_dir={out} --max_seq_length=12"
NO_CLUSTER = {"TF_CONFIG": ""}
CLUSTER = {
    "TF_CONFIG": json.dumps({"cluster": {"worker": ["host1:1", "host2:1"]}, "task": {"type": "worker", "index": 1}})
}


def write_files(d):
    programs.write_model_files(d)
    (d / "large_vocab.txt").write_text("\n".join([*programs.PIECES, "more"]) + "\n")
    (d / "broken.json").write_text('{"vocab_size": 36,')
    (d / "unknown_key.json").write_text('{"vocab_size": 36, "hiden_size": 12}')
    programs.write_pretraining_data(d / "train.tfrecord")
    programs.write_pretraining_data(d / "long.tfrecord", length=16)
    (d / "empty.tfrecord").touch()
    for name in ("table", "bad_dev", "no_dev", "one_class", "empty_table"):
        (d / name).mkdir()
        labels = ("x", "x") if name == "one_class" else ("x", "y")
        rows = "".join(f"a b {letter}\t{label}\n" for letter in "cdefgh" for label in labels)
        for split in ("train", "dev", "test"):
            (d / name / f"{split}.tsv").write_text("text\tlabel\n" + rows)
    (d / "bad_dev" / "dev.tsv").write_text("text\tlabel\na b\tz\n")
    (d / "no_dev" / "dev.tsv").unlink()
    (d / "empty_table" / "train.tsv").write_text("text\tlabel\n")
    (d / "test_without_text.tsv").write_text("sentence\na b\n")
    answers = [{"text": "c", "answer_start": 4}]
    asked = [{"id": str(i), "question": "b", "answers": answers} for i in range(6)]
    data = [{"title": "t", "paragraphs": [{"context": "a b c d e f g", "qas": asked}]}]
    (d / "squad.json").write_text(json.dumps({"version": "1.1", "data": data}))
    (d / "bad_squad.json").write_text(json.dumps({"version": "1.1", "data": [{"paragraphs": [{"context": "a"}]}]}))
    (d / "answers.json").write_text(json.dumps({str(i): "c" for i in range(6)}))
    (d / "full").mkdir()
    (d / "full" / "file").touch()
    write_encoder(d / "encoder", finished_runs.config())
    write_encoder(d / "wide", finished_runs.config().replace(hidden_size=24))
    text = {"task": "text", "problem": "classification", "labels": ["x", "y"]}
    finished_runs.write_run(d / "text_run", ClassifierModel(finished_runs.config(), 2), **text)
    labels = text | {"labels": ["x", "y", "z"]}
    finished_runs.write_run(d / "other_labels", ClassifierModel(finished_runs.config(), 3), **labels)
    finished_runs.write_run(d / "squad_run", SpanModel(finished_runs.config()), task="squad")
    finished_runs.write_run(d / "pretrained", PretrainingModel(finished_runs.config()), objective="mlm_nsp")
    for name, labels in (("text_run", ["x", "y"]), ("other_labels", ["x", "y", "z"])):
        (d / name / "labels.json").write_text(json.dumps(labels))


def write_encoder(folder, config):
    folder.mkdir()
    shutil.copy(folder.parent / "vocab.txt", folder)
    (folder / "bert_config.json").write_text(config.to_json_string())
    weights = {variable.path: np.array(variable) for variable in BertEncoder(config).weights}
    checkpoints.write_checkpoint(str(folder / "bert_model.ckpt"), weights)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    d = tmp_path_factory.mktemp("files")
    write_files(d)
    return d


def contents(*folders):
    """Returns the files in some directories, with their contents."""
    return {path: path.is_file() and path.read_bytes() for folder in folders for path in folder.rglob("*")}


def dry_run(command, d, tmp_path, expect=0, environment=NO_CLUSTER):
    """Runs a command with --dry_run, checks that nothing was written, and returns the output."""
    before = contents(d, tmp_path)
    output = programs.run(*command, "--dry_run", expect=expect, environment=environment)
    assert contents(d, tmp_path) == before
    assert ("Dry run: no errors were found." in output) == (expect == 0)
    return output


# The number of weights for the released sizes, with a vocabulary of 30,522 and the pre-training heads.
PARAMETERS = {"Base": 110_106_428, "Large": 336_226_108}
# The command line, and the start of the message. The output directory does not exist, unless the command names one.
WRONG = {
    "misspelled value": (f"{PRETRAIN} {RECORDS} --objective=mlm_nps", "flag --objective=mlm_nps: value should be one"),
    "misspelled flag": (f"{CLASSIFY} {TABLE} --learning_rat=1", "Unknown command line flag 'learning_rat'"),
    "no step": (f"{PRETRAIN} --input_file={{d}}/train.tfrecord", "No step is selected"),
    "missing vocabulary": (f"{PRETRAIN} {RECORDS} --vocab_file={{d}}/no.txt", "--vocab_file: there is no file"),
    "vocabulary larger than the config": (
        f"{CLASSIFY} {TABLE} --vocab_file={{d}}/large_vocab.txt",
        "--vocab_file ({d}/large_vocab.txt) has 42 entries, but the model's vocab_size is 41",
    ),
    "broken config": (f"{CLASSIFY} {TABLE} --bert_config_file={{d}}/broken.json", "--bert_config_file: {d}/broken"),
    "unknown key in the config": (
        f"{PRETRAIN} {RECORDS} --bert_config_file={{d}}/unknown_key.json",
        "--bert_config_file ({d}/unknown_key.json): Object contains unknown field `hiden_size`",
    ),
    "checkpoint of another size": (
        f"{CLASSIFY} {TABLE} --init_checkpoint={{d}}/wide/bert_model.ckpt",
        "--init_checkpoint: {d}/wide/bert_model.ckpt",
    ),
    "missing checkpoint": (f"{PRETRAIN} {RECORDS} --init_checkpoint={{d}}/no", "--init_checkpoint: there is no check"),
    "missing records": (f"{PRETRAIN} --do_train --input_file={{d}}/x*", "--input_file: '{d}/x*' matches no file"),
    "empty records": (f"{PRETRAIN} --do_train --input_file={{d}}/empty.tfrecord", "--input_file: '{d}/empty"),
    "records of another length": (
        f"{PRETRAIN} --do_train --input_file={{d}}/long.tfrecord",
        "--input_file: {d}/long.tfrecord, record 1: input_ids has 16 numbers instead of 12",
    ),
    "records with more predictions": (
        f"{PRETRAIN} {RECORDS} --max_predictions_per_seq=2",
        "--input_file: {d}/train.tfrecord, record 1: masked_lm_positions has 3 numbers instead of 2",
    ),
    "bad held-out records": (
        f"{PRETRAIN} {RECORDS} --eval_input_file={{d}}/long.tfrecord",
        "--eval_input_file: {d}/long.tfrecord, record 1",
    ),
    "few held-out records": (
        f"{PRETRAIN} {RECORDS} --eval_input_file={{d}}/train.tfrecord --eval_batch_size=64",
        "--eval_input_file: {d}/train.tfrecord has fewer examples than --eval_batch_size=64",
    ),
    "too few positions": (
        f"{CLASSIFY} {TABLE} --max_seq_length=64",
        "--max_seq_length is 64, but the model has only 32 positions",
    ),
    "more frozen layers than layers": (f"{PRETRAIN} {RECORDS} --freeze_layers=9", "--freeze_layers=9: the model has"),
    "indivisible batch": (
        f"{CLASSIFY} {TABLE} --gradient_accumulation_steps=3",
        "--train_batch_size=32: a replica's 32 examples are not a multiple of --gradient_accumulation_steps=3",
    ),
    "less than one step": (f"{CLASSIFY} {TABLE} --num_train_epochs=0.1", "--num_train_epochs=0.1 of 12 examples"),
    "unwritable output": (f"{CLASSIFY} {TABLE} --output_dir=/proc/x", "--output_dir: /proc: no files can be created"),
    "file as output": (
        f"{SQUAD} {QUESTIONS} --output_dir={{d}}/squad.json",
        "--output_dir: {d}/squad.json is not a directory",
    ),
    "output of another run": (
        f"{CLASSIFY} {TABLE} --output_dir={{d}}/text_run",
        "--output_dir: {d}/text_run: the run began with other settings",
    ),
    "unreachable bucket": (f"{CLASSIFY} {TABLE} --output_dir=gs://no-bucket/x", "--output_dir: gs://no-bucket"),
    "unknown file system": (
        f"{PRETRAIN} {RECORDS} --output_dir=no://x/y",
        "--output_dir: no://x/y: File system scheme",
    ),
    "unknown task": (f"{CLASSIFY} {TABLE} --task_name=texts", "--task_name"),
    "missing file of the task": (
        f"{CLASSIFY} --task_name=MRPC --data_dir={{d}}/full --do_train",
        "--data_dir: there is no file '{d}/full/train.tsv'",
    ),
    "unknown label in the dev set": (
        f"{CLASSIFY} --data_dir={{d}}/bad_dev --do_train --do_eval",
        "{d}/bad_dev/dev.tsv, line 2: the label 'z'",
    ),
    "missing dev set": (f"{CLASSIFY} --data_dir={{d}}/no_dev --do_train --do_eval", "there is no dev file"),
    "missing test set": (f"{CLASSIFY} {TABLE} --do_predict --test_file={{d}}/no.tsv", "--test_file: there is no file"),
    "test set without the column": (
        f"{CLASSIFY} {TABLE} --do_predict --test_file={{d}}/test_without_text.tsv",
        "{d}/test_without_text.tsv",
    ),
    "one class": (
        f"{CLASSIFY} --data_dir={{d}}/one_class --do_train",
        "{d}/one_class/train.tsv: every row has the label",
    ),
    "empty data": (f"{CLASSIFY} --data_dir={{d}}/empty_table --do_train", "{d}/empty_table/train.tsv"),
    "prediction without training": (
        f"{CLASSIFY} --data_dir={{d}}/table --do_predict --init_checkpoint={{d}}/encoder",
        "--init_checkpoint: {d}/encoder/bert_model.ckpt was not fine-tuned for this task",
    ),
    "questions that are not SQuAD's": (
        f"{SQUAD} --train_file={{d}}/bad_squad.json --do_train",
        "--train_file: {d}/bad",
    ),
    "questions longer than the sequence": (
        f"{SQUAD} {QUESTIONS} --max_query_length=12",
        "--max_query_length=12: --max_seq_length=12 leaves no room for text",
    ),
    "answers without questions": (f"{SQUAD} --do_predict", "--do_predict is used only with --predict_file"),
    "ensemble without a model": (
        f"{SQUAD} --do_predict --predict_file={{d}}/squad.json --ensemble_dirs={{d}}/squad_run,{{d}}/full",
        "--ensemble_dirs",
    ),
    "existing export": (f"{CLASSIFY} {TABLE} --do_export --export_dir={{d}}/full", "--export_dir: {d}/full already"),
    "export of a BiLSTM": (
        f"{CLASSIFY} {TABLE} --bilstm_layers=1 --do_export --export_dir={{out}}/e",
        "--do_export: a model with a BiLSTM can't be exported",
    ),
    "export without a run": (f"{CLASSIFY} --do_export --export_dir={{d}}/e --output_dir={{d}}/full", ""),
    "sweep with an indivisible batch": (
        f"{CLASSIFY} {TABLE} --sweep --sweep_batch_sizes=16 --gradient_accumulation_steps=3",
        "--sweep_batch_sizes=16",
    ),
    "TPU without a name": (f"{PRETRAIN} {RECORDS} --use_tpu", "--tpu_name: missing"),
    "missing cluster": (f"{PRETRAIN} {RECORDS} --distribution_strategy=multi_worker", "--distribution_strategy=multi"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_set_up_is_found_with_the_message_of_the_real_run(files, tmp_path, name):
    command, message = (text.format(d=files, out=tmp_path / "out") for text in WRONG[name])
    output = dry_run(command.split(), files, tmp_path, expect=1)
    assert f"error: {message}" in output
    real = programs.run(*command.split(), expect=1, environment=NO_CLUSTER)
    assert output[output.index("error: ") :] in real and "Traceback" not in real


HIDE = "import runpy, sys; sys.modules['{module}'] = None; runpy.run_path(sys.argv.pop(1), run_name='__main__')"


@pytest.mark.parametrize(
    ("module", "command", "message"),
    [
        ("tf2onnx", f"{CLASSIFY} {TABLE} --do_export --export_onnx --export_dir={{d}}/e", "--export_onnx: tf2onnx is"),
        (
            "official",
            f"{SQUAD} {QUESTIONS} --do_predict --predict_file={{d}}/squad.json",
            "tf-models-official is not installed",
        ),
    ],
)
def test_a_missing_library_is_found(files, tmp_path, module, command, message):
    program, *flags = command.format(d=files, out=tmp_path / "out").split()
    output = dry_run(["-c", HIDE.format(module=module), program, *flags], files, tmp_path, expect=1)
    assert message in output


RIGHT = {
    "pre-training": (
        f"{PRETRAIN} {RECORDS} --do_eval --eval_input_file={{d}}/train.tfrecord --eval_steps=4 --max_eval_steps=1"
    ),
    "pre-training in two phases": (
        f"{PRETRAIN} {RECORDS} --second_input_file={{d}}/long.tfrecord --second_max_seq_length=16 --objective=mlm"
        " --second_max_predictions_per_seq=3 --second_phase_proportion=0.5 --second_train_batch_size=16"
        " --second_gradient_accumulation_steps=2 --train_batch_size=8 --freeze_layers=0 --num_train_steps=2"
    ),
    "continued pre-training": f"{PRETRAIN} {RECORDS} --init_checkpoint={{d}}/pretrained --num_train_epochs=2",
    "classification": (
        f"{CLASSIFY} --data_dir={ROOT}/examples/authors --do_train --do_eval --train_batch_size=200"
        " --init_checkpoint={d}/encoder --num_train_epochs=1"
    ),
    "GLUE": (
        f"{CLASSIFY} --task_name=WNLI --data_dir={{data}}/glue/WNLI --do_train --do_eval --do_predict"
        " --train_batch_size=200 --num_train_epochs=1 --do_export --export_dir={out}_exported --noexport_text"
    ),
    "tagging": (
        f"{CLASSIFY} --task_name=ner --data_dir={{data}}/ner/wnut17 --do_train --num_train_steps=1"
        " --train_batch_size=64 --gradient_accumulation_steps=2"
    ),
    "feature-based tagging": (
        f"{CLASSIFY} --task_name=ner --train_file={{data}}/ner/wnut17/emerging.dev.conll --do_train"
        " --num_train_steps=1 --feature_layers=-1 --init_checkpoint={d}/encoder --bilstm_units=4"
        " --features_dir={out}_features"
    ),
    "multiple choice": (
        f"{CLASSIFY} --task_name=codah --data_dir={{data}}/codah --do_train --num_train_steps=2 --train_batch_size=32"
    ),
    "questions": f"{SQUAD} {QUESTIONS} --do_predict --predict_file={{d}}/squad.json --train_batch_size=2",
    "questions, one file after another": (
        f"{SQUAD} --train_file={{d}}/squad.json,{{d}}/squad.json --do_train --train_batch_size=3 --num_train_epochs=1"
    ),
    "padded sequences": f"{CLASSIFY} {TABLE} --pad_to_max_seq_length --train_batch_size=4 --num_train_epochs=1",
    "sweep": (
        f"{CLASSIFY} {TABLE} --do_eval --sweep --sweep_batch_sizes=12 --sweep_epochs=1 --sweep_learning_rates=1e-3"
        " --num_restarts=2"
    ),
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
    data = data_path("") if "{data}" in RIGHT[name] else None
    command = f"{RIGHT[name]} --log_steps=1".format(d=files, out=out, data=data).split()
    output = dry_run(command, files, tmp_path)
    real = programs.run(*command, environment=NO_CLUSTER)
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
        f"{PRETRAIN} --input_file={{d}}/train.tfrecord --do_eval --output_dir={{d}}/pretrained",
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
    ("flags", "environment", "devices"),
    [
        ("--use_tpu --tpu_name=slice --num_tpu_cores=8 --dtype=bfloat16", {}, "8 TPU cores"),
        ("--use_tpu --tpu_name=local", {}, "1 TPU core (--num_tpu_cores is not given)"),
        (
            "--distribution_strategy=multi_worker",
            CLUSTER,
            "2 CPUs (2 workers; each is assumed to be like this one)",
        ),
    ],
)
def test_neither_a_tpu_nor_other_workers_are_needed(files, tmp_path, flags, environment, devices):
    command = f"{PRETRAIN} {RECORDS} {flags}".format(d=files, out=tmp_path / "out").split()
    output = dry_run(command, files, tmp_path, environment=NO_CLUSTER | environment)
    assert f"  Devices = {devices}\n" in output
    assert ("benchmarks.tpu_compile" in output) == ("TPU" in devices)


def test_the_devices_share_a_batch(files, tmp_path):
    command = f"{PRETRAIN} {RECORDS} --use_tpu --tpu_name=local --num_tpu_cores=5"
    output = dry_run(command.format(d=files, out=tmp_path / "out").split(), files, tmp_path, expect=1)
    assert "error: --train_batch_size is 32. Use a multiple of the 5 replicas." in output
    command = f"{CLASSIFY} {TABLE} --use_tpu --tpu_name=slice"
    output = dry_run(command.format(d=files, out=tmp_path / "out").split(), files, tmp_path, expect=1)
    assert "--tpu_name: the TPU 'slice' has several hosts, or its host is another machine." in output


def test_rows_are_those_of_the_real_run(files, tmp_path, monkeypatch, capsys):
    flags = {"output_dir": str(tmp_path / "out"), "max_seq_length": 12, "do_train": True, "train_batch_size": 6}
    flags |= {"bert_config_file": str(files / "config.json"), "vocab_file": str(files / "vocab.txt")}
    shapes, make = [], strategies.batches

    def run(**more):
        config = FinetuningConfig.from_flags(flags | more)
        workflow.finetune(registry.build_task(DataConfig("text", str(files / "table")), "", True), config)

    def batches(*arguments):
        for batch in make(*arguments):
            shapes.append(batch["input_ids"].shape)
            yield batch

    run(dry_run=True)
    rows, length = map(float, re.search(r"  ([\d.]+) x ([\d.]+)  ", capsys.readouterr().err).groups())
    monkeypatch.setattr(strategies, "batches", batches)
    run()
    shapes = np.array(shapes[:6])
    assert len(shapes) == 6 and rows == shapes[:, 0].mean()
    assert length == pytest.approx(shapes.prod(axis=1).sum() / shapes[:, 0].sum(), rel=1e-3)


def test_the_directory_at_a_url_is_checked_and_left_as_it_is():
    remote.call("makedirs", "ram://checked/runs")
    runtime_files.check_output_directory("ram://checked/runs/new/run", "--output_dir")
    assert remote.call("listdir", "ram://checked/runs") == []
    with pytest.raises(InputError, match="--output_dir: no://x: File system scheme 'no' not implemented"):
        runtime_files.check_output_directory("no://x", "--output_dir")


def test_the_memory_is_that_of_the_documentation():
    page = (ROOT / "docs" / "results" / "tpu-estimates.md").read_text()
    flags = r"`--size=\w+ --length=(\d+) --batch=(\d+)( --recompute)?`"
    row = rf"^\| (Base|Large) \| {flags} \| [\d.]+ \| [\d.]+ \| ([\d.]+) \|"
    rows = re.findall(row, page, re.MULTILINE)
    assert len(rows) == 4
    for size, length, batch, recomputes, documented in rows:
        shape, options = (int(batch), int(length)), ("bfloat16", bool(recomputes), int(length) < 256)
        found = estimates.memory_gib(
            BertConfig.named(size.lower()), PARAMETERS[size], PARAMETERS[size], *shape, *options
        )
        assert f"{found:.1f}" == documented


def test_the_log_reports_the_utilisation_of_known_gpus(monkeypatch):
    for name, dtype, peak in (
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989.0),
        ("Tesla V100-SXM2-16GB", "float32", 15.7),
        ("Tesla V100-SXM2-16GB", "bfloat16", 0.0),
        ("NVIDIA A100-SXM4-40GB", "float16", 312.0),
        ("NVIDIA GH200 480GB", "float16", 0.0),
    ):
        monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["gpu"])
        monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda gpu, name=name: {"device_name": name})
        monkeypatch.setattr(strategies, "devices", lambda strategy: {"device": "GPU"})
        strategy = tf.distribute.get_strategy()
        assert log.with_known_peak(TrainingConfig(dtype=dtype), strategy).peak_tflops == peak
        assert log.with_known_peak(TrainingConfig(dtype=dtype, peak_tflops=3.0), strategy).peak_tflops == 3.0
