"""Traces the programs, with their own loops and input pipelines, for a simulated TPU, and checks the graphs.

A graph lowers if its shapes are static, and if the TPU build of TensorFlow compiles all of its operations
(`tpu_operations.txt`, which `python -m tests.training.tpu_operations` makes).
"""

import functools
import json
import pathlib

import numpy as np
import pytest

from bert_tf.distribution import strategies
from bert_tf.distribution.devices import DistributionConfig
from bert_tf.pretraining import input_pipeline, record_shards
from bert_tf.pretraining.model import PretrainingModel
from tests import fake_tpu, finished_runs, programs
from tests.documentation import small_data

OPERATIONS = pathlib.Path(__file__).with_name("tpu_operations.txt")
# The data types of TPU operations. A TPU emulates float64, and the programs do not need it.
TYPES = {"bfloat16", "bool", "float32", "int32", "int64", "resource", "uint16", "uint32", "uint64"}
LOOP, EVALUATION, PREDICTION = "many_steps", "step", "run"

PRETRAINING = "run_pretraining.py --max_seq_length=12 --max_predictions_per_seq=3 --train_batch_size=16 --do_train"
PRETRAINING += " --num_train_steps=4 --num_warmup_steps=1 --max_eval_steps=2 --eval_batch_size=8"
FINETUNING = "--train_batch_size=8 --num_train_epochs=1 --max_seq_length=24 --num_workers=1 --do_train"
CLASSIFIER = f"run_classifier.py {FINETUNING} --do_predict"
SQUAD = f"run_squad.py {FINETUNING} --doc_stride=8 --max_query_length=8 --do_predict"
# Name -> the program and its flags, and the functions that are traced.
PROGRAMS = {
    "pre-training in two phases": (
        f"{PRETRAINING} --input_file=train.tfrecord --second_input_file=second.tfrecord --second_max_seq_length=16"
        " --second_max_predictions_per_seq=3 --second_phase_proportion=0.5 --second_gradient_accumulation_steps=2"
        " --do_eval",
        [LOOP, LOOP, EVALUATION],
    ),
    "pre-training with dynamic masks": (
        f"{PRETRAINING} --input_file=unmasked.tfrecord --eval_input_file=train.tfrecord --gradient_checkpointing"
        " --gradient_accumulation_steps=2 --max_nonfinite_steps=1 --jit_compile=yes",
        [LOOP, EVALUATION],
    ),
    # Evaluation and prediction use the same graph.
    "classification": (f"{CLASSIFIER} --do_eval --task_name=rte --data_dir=glue/RTE", [LOOP, PREDICTION]),
    "regression": (
        f"{CLASSIFIER} --task_name=text --data_dir=tables --problem=regression --text_column=body"
        " --label_column=stars --train_batch_size=16 --gradient_accumulation_steps=2 --gradient_checkpointing",
        [LOOP, PREDICTION],
    ),
    "tagging": (f"{CLASSIFIER} --task_name=ner --data_dir=conll2003", [LOOP, PREDICTION]),
    "multiple choice": (f"{CLASSIFIER} --task_name=swag --data_dir=swag", [LOOP, PREDICTION]),
    "SQuAD 2.0": (
        f"{SQUAD} --train_file=squad/train-v2.0.json --predict_file=squad/asked.json --version_2_with_negative",
        [LOOP, PREDICTION],
    ),
    "features": (
        "extract_features.py --input_file=texts.txt --init_checkpoint=model --layers=-1 --max_seq_length=24"
        " --batch_size=11",
        [PREDICTION],
    ),
}


def write_files(directory):
    """Writes small data, a model with one layer, and a vocabulary."""
    small_data.write_files(directory)
    programs.write_model_files(directory)
    finished_runs.write_run(directory / "model", PretrainingModel(finished_runs.config()))
    programs.write_pretraining_data(directory / "train.tfrecord")
    programs.write_pretraining_data(directory / "second.tfrecord", length=16)
    programs.run(
        *("-m", "data_prep.create_pretraining_data", f"--input_file={directory}/examples/heldout.txt"),
        *(f"--vocab_file={directory}/vocab.txt", f"--output_file={directory}/unmasked.tfrecord", "--masking=dynamic"),
        *("--max_seq_length=12", "--num_workers=1", "--allow_unusual_data"),
    )
    asked = json.loads((directory / "squad" / "dev-v2.0.json").read_text())
    for question in asked["data"][0]["paragraphs"][0]["qas"]:
        del question["answers"], question["is_impossible"]
    (directory / "squad" / "asked.json").write_text(json.dumps(asked))


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tpu")
    write_files(directory)
    return directory


def trace(directory, name, output_dir, *options, **how):
    """Runs a program, and returns the graphs for the TPU."""
    flags = f"{PROGRAMS[name][0]} --use_tpu".split()
    if flags[0] == "extract_features.py":
        flags += ["--master=local", f"--output_file={output_dir}.jsonl"]
    else:
        flags += ["--tpu_name=local", "--vocab_file=vocab.txt", "--bert_config_file=config.json", "--dtype=bfloat16"]
        flags += [f"--output_dir={output_dir}"]
    graphs = output_dir.with_suffix(".graphs")
    programs.run("-m", "tests.fake_tpu", f"--directory={directory}", f"--graphs={graphs}", *options, *flags, **how)
    return [json.loads(line) for line in graphs.read_text().splitlines()]


@pytest.mark.parametrize("cores", [2, pytest.param(1, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_tpu_can_compile_the_programs(directory, tmp_path, name, cores):
    hosts, cores = (2, max(cores, 4)) if "dynamic" in name and cores > 1 else (1, cores)
    graphs = trace(directory, name, tmp_path / "run", f"--cores={cores}", f"--hosts={hosts}")
    assert [graph["function"] for graph in graphs] == PROGRAMS[name][1]
    compiled = {*OPERATIONS.read_text().split(), "TPUReplicateMetadata"}
    for graph in graphs:
        assert {"MatMul", "Softmax", "Tanh"} <= set(graph["operations"]) <= compiled
        assert not [name for name in graph["host_operations"] if "Optional" in name or "DynamicDimension" in name]
        assert graph["unknown_shapes"] == graph["host_calls"] == graph["compiled_parts"] == []
        assert set(graph["types"]) <= TYPES
        assert graph["products"] == ["float32" if name == "features" else "bfloat16"]


def test_each_host_reads_its_own_part_of_a_batch(tmp_path):
    programs.write_pretraining_data(tmp_path / "train.tfrecord")
    code = "from tests.training import test_tpu; test_tpu.check_parts_of_hosts({!r})"
    programs.run("-c", code.format(str(tmp_path / "train.tfrecord")))


def check_parts_of_hosts(path):
    """Runs in a separate process. Compares the parts that two hosts with two cores each read with a complete batch."""
    fake_tpu.install(cores=4, hosts=2)
    sizes = (programs.LENGTH, programs.PREDICTIONS)
    shards = record_shards.find_shards(path, *sizes, len(programs.PIECES))
    features = record_shards.record_features(shards)
    read = functools.partial(input_pipeline.training_batches, shards, features, 8, 5, 2, reads_through=True)
    strategy = strategies.build_strategy(DistributionConfig("tpu", "local"), several_hosts=True)
    parts = next(strategies.batches(strategy, read))
    for name, expected in next(iter(read())).items():
        of_cores = [part.numpy() for part in strategy.experimental_local_results(parts[name])]
        np.testing.assert_array_equal(np.concatenate(of_cores), expected)
