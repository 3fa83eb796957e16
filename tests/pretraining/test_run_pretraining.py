import contextlib
import json
import math

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import checkpoints
from bert_tf.checkpoints import run_record, saver
from bert_tf.config import BertConfig, ModelFiles
from bert_tf.distribution import strategies
from bert_tf.optimization import OptimizerConfig
from bert_tf.pretraining import evaluation, input_pipeline
from bert_tf.pretraining.example_sets import ExampleFinder
from bert_tf.pretraining.pretraining_config import HeldOutConfig, PretrainingConfig, PretrainingData, SecondPhase
from bert_tf.pretraining.run import PretrainingRun, pretrain
from bert_tf.pretraining.training_batches import training_data
from bert_tf.runtime.files import InputError
from bert_tf.sequences.example_format import Feature, parse, pretraining_features
from bert_tf.training import log, worker_checks
from bert_tf.training.errors import explain_errors
from bert_tf.training.evaluation import BatchEvaluator, remove_stale_best
from bert_tf.training.interface import TrainingData
from bert_tf.training.loop import train
from bert_tf.training.settings import Compilation, TrainingConfig
from tests import programs
from tests.conftest import assert_refused, tensors_of
from tests.programs import LENGTH, PREDICTIONS, serialize

pytestmark = [pytest.mark.eager, pytest.mark.plain]


@pytest.fixture
def files(tmp_path):
    config, vocab = programs.write_model_files(tmp_path)
    data = [programs.write_pretraining_data(tmp_path / f"part-{i}.tfrecord", 40, seed=i) for i in range(2)]
    return config, vocab, ",".join(data)


def flags(files, output_dir, **values):
    config, vocab, data = files
    defaults = {
        "bert_config_file": config,
        "vocab_file": vocab,
        "input_file": data,
        "output_dir": output_dir,
        "max_seq_length": LENGTH,
        "max_predictions_per_seq": PREDICTIONS,
        "train_batch_size": 8,
        "num_train_steps": 6,
        "num_warmup_steps": 2,
    }
    return [f"--{name}={value}" for name, value in (defaults | values).items()]


@pytest.mark.graph
@pytest.mark.kernels
def test_program_trains_evaluates_and_refuses_changed_settings(files, tmp_path):
    out, longest = tmp_path / "out", LENGTH + 2
    longer = programs.write_pretraining_data(tmp_path / "longer.tfrecord", length=longest)
    phases = (
        f"--recipe=lamb_64k --second_input_file={longer} --second_max_seq_length={longest} --second_num_warmup_steps=0"
    )
    phases += f" --second_max_predictions_per_seq={PREDICTIONS} --second_train_batch_size=4 --second_learning_rate=5e-4"
    phases += f" --second_phase_proportion={1 / 3} --second_reset_moments --log_steps=2 --save_checkpoints_steps=4"
    held_out = f"--eval_input_file={longer} --eval_max_seq_length={longest} --eval_steps=3 --max_eval_steps=6"
    train = ["run_pretraining.py", *flags(files, out), *phases.split(), "--do_train", "--deterministic"]
    command = [*train, *held_out.split(), "--use_best_checkpoint", "--do_eval"]
    output = programs.run(*command, "--do_export", f"--export_dir={tmp_path / 'exported'}", "--noexport_text")
    assert "Traceback" not in output
    assert f"Steps 4 to 6: batches of 4 sequences of {LENGTH + 2} from 40 examples in 1 files." in output
    resume_settings = json.loads((out / "run.json").read_text())["resume_settings"]
    assert [phase["steps"] for phase in resume_settings["phases"]] == [[0, 4], [4, 6]]
    assert (resume_settings["optimizer"], resume_settings["learning_rate"]) == ("lamb", 6e-3)  # from the recipe
    assert resume_settings["train_batch_size"] == 8  # from the flag
    assert f"Wrote {tmp_path / 'exported'} with the signatures token_ids." in output
    assert (tmp_path / "exported" / "saved_model.pb").exists()
    results = dict(line.split(" = ") for line in (out / "eval_results.txt").read_text().splitlines())
    names = [f"{head}_{metric}" for head in ("masked_lm", "next_sentence") for metric in ("accuracy", "loss")]
    assert list(results) == ["global_step", "loss", *names]
    best = json.loads((out / "best" / "scores.json").read_text())
    assert results["global_step"] == str(best["step"])
    lines = log.read_metrics(str(out))
    kinds = {kind: [line["step"] for line in lines if line["kind"] == kind] for kind in ("train", "eval")}
    assert kinds == {"train": [2, 3, 4, 6], "eval": [3, 6]} and "perplexity" in lines[-1]
    trained = {line["step"]: line for line in lines if line["kind"] == "train"}
    rates, tokens = ({step: line[name] for step, line in trained.items()} for name in ("learning_rate", "tokens"))
    assert (tokens[4], tokens[6]) == (8 * LENGTH, 4 * (LENGTH + 2))  # each phase has its own batch size
    assert rates[4] == pytest.approx(6e-3 * (1 - 3 / 4) ** 0.5)  # each phase has its own schedule
    assert rates[6] == pytest.approx(5e-4 * (1 - 1 / 2) ** 0.5)
    assert best["loss"] == min(line["loss"] for line in lines if line["kind"] == "eval")
    assert {"learning_rate", "gradient_norm", "tokens_per_second"} <= lines[0].keys()
    assert lines[0]["first_step_seconds"] > 0
    assert "first_step_seconds" not in lines[3]  # only in the first line of the process
    assert sorted(p.name for p in out.glob("*.index")) == ["model.ckpt-4.index", "model.ckpt-6.index"]
    source = checkpoints.open_checkpoint(str(out / "model.ckpt-6"))
    assert int(source.read("global_step")) == 6
    assert {"vocab.txt", "bert_config.json", "run.json"} <= {p.name for p in out.iterdir()}

    output = programs.run(*command, "--learning_rate=2e-3", expect=1)
    assert "learning_rate was 0.006, and is 0.002 now" in output
    assert "Traceback" not in output

    # A run that ended at the boundary of the phases resumes exactly. The optimizer has not been reset yet.
    saver.CheckpointSaver(str(tmp_path / "resumed"), 1).save(4, tensors_of(out / "model.ckpt-4"))
    programs.run(*train, f"--output_dir={tmp_path / 'resumed'}")
    np.testing.assert_equal(tensors_of(tmp_path / "resumed" / "model.ckpt-6"), tensors_of(out / "model.ckpt-6"))


def make_run(files, directory, config=None, data=None, second=None, train_batch_size=8, **options):
    second = SecondPhase(second.input_file, LENGTH, PREDICTIONS, proportion=0.5) if second else SecondPhase()
    vocab_file = options.pop("vocab_file", "")
    settings = PretrainingConfig(
        data=data or PretrainingData(files[2], LENGTH, PREDICTIONS),
        model=ModelFiles(options.pop("init_checkpoint", None)),
        training=TrainingConfig(str(directory), OptimizerConfig(1e-3), train_batch_size),
        num_train_steps=4,
        num_warmup_steps=1,
        second=second,
        **options,
    )
    return PretrainingRun(settings, config or BertConfig.from_json_file(files[0]), vocab_file)


def trained(run, hooks=()):
    return train(run, training_data(run, run.phases), hooks)


def evaluated(run, steps=2):
    return evaluation.evaluate(run, run.phases[-1].examples, 8, steps)


def held_out_evaluation(run):
    return evaluation.while_training(run, run.finder.find(run.settings.held_out_data))


def test_epochs_give_the_number_of_steps(files, tmp_path):
    """45% of 80 examples in batches of 8 are 4.5 steps. All of them are used."""
    run = make_run(files, tmp_path / "out", num_train_epochs=0.45)
    assert run.training_config.num_train_steps == 5


@pytest.mark.parametrize("objective", ["mlm", "ltr"])
def test_ablations_train_and_evaluate(files, tmp_path, objective):
    run = make_run(files, tmp_path / "out", objective=objective)
    means = trained(run)
    assert "next_sentence_loss" not in means
    # An untrained model gives every token about the same probability in all positions.
    assert means["masked_lm_loss"] == pytest.approx(math.log(run.model.encoder.config.vocab_size), rel=0.02)
    results = evaluated(run)
    assert results["global_step"] == 4
    assert results["masked_lm_loss"] == pytest.approx(means["masked_lm_loss"], rel=0.02)


def test_a_run_is_evaluated_only_as_the_model_that_it_trained(files, tmp_path):
    run = make_run(files, tmp_path / "out")
    run.record()
    trained(run)
    config = BertConfig.from_json_file(files[0])
    for changes, objective, message in (
        ({"hidden_dropout_prob": 0.0, "initializer_range": 0.5}, "mlm_nsp", ""),
        ({"num_attention_heads": 1}, "mlm_nsp", r"settings:\n  bert_config: num_attention_heads was"),
        ({"layer_norm_eps": 1e-5}, "mlm_nsp", "bert_config: layer_norm_eps was None, and is 1e-05 now"),
        ({}, "mlm", "objective was 'mlm_nsp', and is 'mlm' now"),
    ):
        changed = config.replace(**changes)
        with pytest.raises(InputError, match=message) if message else contextlib.nullcontext():
            assert evaluated(make_run(files, tmp_path / "out", changed, objective=objective), 1)["global_step"] == 4


def test_workers_compare_settings_and_restored_state_before_they_train_and_evaluate(files, tmp_path, monkeypatch):
    compared = []
    monkeypatch.setattr(worker_checks, "require", lambda strategy, values: compared.append(values()))
    settings = make_run(files, tmp_path / "out").settings
    compared.clear()
    settings = settings.replace(do_train=True, do_eval=True, held_out=HeldOutConfig(max_steps=1))
    pretrain(settings, BertConfig.from_json_file(files[0]))
    assert [values.get("step") for values in compared] == [None, 0, 4]
    assert {"bert_config", "phases", "learning_rate"} <= compared[0].keys()
    steps = {"do_train": True, "do_eval": True, "eval_batch_size": 8, "max_eval_steps": 1}
    assert compared[0].items() >= steps.items()
    assert all("checksum of all variables" in values for values in compared[1:])


def test_the_data_of_the_last_phase_are_evaluated(files, tmp_path, monkeypatch):
    names = ("--input_file", "--second_input_file")
    data = [
        PretrainingData(path, LENGTH, PREDICTIONS, name) for path, name in zip(files[2].split(","), names, strict=True)
    ]
    for given in (data[:1], data):
        run, found = make_run(files, tmp_path / "out", None, *given), []
        monkeypatch.setattr(evaluation, "evaluate", lambda run, examples, *_, found=found: found.append(examples))
        pretrain(run.settings.replace(do_eval=True), run.config)
        assert [examples.flag_name for examples in found] == [given[-1].flag_name]


def test_the_weights_with_the_smallest_held_out_loss_are_kept_and_used(files, tmp_path, monkeypatch):
    out = tmp_path / "out"
    held_out = HeldOutConfig(files[2], batch_size=8, max_steps=2, steps=2, use_best_checkpoint=True)
    losses = {2: 3.0, 4: 2.0, 6: 2.5}
    for steps in ([2, 4], [6]):  # the second time in another process
        run = make_run(files, out, do_train=True, held_out=held_out)
        hook = held_out_evaluation(run)
        for step in steps:
            means = {"loss": losses[step], "masked_lm_loss": 1.0}
            monkeypatch.setattr(BatchEvaluator, "evaluate", lambda *_, means=means: dict(means))
            run.model.variables[0].assign(tf.fill(run.model.variables[0].shape, float(step)))
            log.MetricsLog(str(out), step).write("eval", step, hook.evaluate(step))
        saver.CheckpointSaver(str(out), 1).save(step, checkpoints.named_variables(run.model.variables))
    assert [path.name for path in (out / "best").glob("*.index")] == ["model.ckpt-4.index"]
    scores = json.loads((out / "best" / "scores.json").read_text())
    assert scores.pop("data")["files"] == hook.settings["files"]
    assert scores == {"step": 4, "loss": 2.0, "masked_lm_loss": 1.0, "perplexity": math.e}
    assert evaluated(run)["global_step"] == 4
    assert (run.model.variables[0].numpy() == 4).all()
    assert checkpoints.open_checkpoint(str(out)).read(run.model.variables[0].path).max() == 4  # to export, for example

    remove_stale_best(str(out))
    assert (out / "best" / "scores.json").exists()
    (out / "checkpoint").unlink()  # the run starts again
    remove_stale_best(str(out))
    assert list((out / "best").iterdir()) == []


def test_losses_on_other_held_out_data_are_not_compared(files, tmp_path, monkeypatch, capsys):
    run = make_run(files, tmp_path / "out")
    loss = {}
    monkeypatch.setattr(BatchEvaluator, "evaluate", lambda *_: {"loss": loss["now"], "masked_lm_loss": 1.0})
    first, second = files[2].split(",")
    for data, max_steps, step, loss["now"], best, is_said in (
        (first, 2, 2, math.nan, None, False),
        (first, 2, 3, 2.0, 3, False),
        (first, 2, 4, 3.0, 3, False),
        (second, 2, 5, 5.0, 5, True),
        (second, 2, 6, 4.0, 6, False),
        (second, 1, 7, 9.0, 7, True),  # fewer batches also count as different data
        (second, 1, 6, 9.5, 7, False),  # better weights of a later step, saved by a killed process, are kept
    ):
        held_out = HeldOutConfig(data, batch_size=8, max_steps=max_steps, use_best_checkpoint=True)
        run.settings = run.settings.replace(do_train=True, held_out=held_out)
        held_out_evaluation(run).evaluate(step)
        kept = tmp_path / "out" / "best" / "scores.json"
        assert (json.loads(kept.read_text())["step"] if kept.exists() else None) == best
        assert ("were found with other held-out data or batches" in capsys.readouterr().err) == is_said


@pytest.mark.parametrize(
    ("device", "choice", "recorded"),
    [("GPU", "auto", "step"), ("GPU", "no", False), ("CPU", "auto", False), ("CPU", "yes", "step")],
)
def test_xla_compiles_the_step_on_a_gpu_and_on_request(device, choice, recorded, files, tmp_path, monkeypatch):
    run = make_run(files, tmp_path / "out")
    run.training_config = run.training_config.replace(jit_compile=choice)
    monkeypatch.setattr(strategies, "devices", lambda strategy: {"device": device})
    run.record()
    assert run_record.recorded(str(tmp_path / "out"))["jit_compile"] == run.compilation.value == recorded
    assert not run.model.encoder.jit_compile
    # With the default, a run that is resumed on other devices makes the same choice.
    resumed = make_run(files, tmp_path / "out")
    monkeypatch.setattr(strategies, "devices", lambda strategy: {"device": "CPU"})
    assert resumed.training_config.jit_compile == "auto"
    assert resumed.compilation == run.compilation


@pytest.mark.parametrize("choice", ["auto", "yes"])
def test_a_run_that_compiled_the_blocks_resumes_in_this_form(choice, files, tmp_path, monkeypatch):
    monkeypatch.setattr(run_record, "recorded", lambda directory: {"jit_compile": True})
    run = make_run(files, tmp_path)
    run.training_config = run.training_config.replace(jit_compile=choice)
    assert run.compilation is Compilation.BLOCKS
    assert run.model.encoder.jit_compile


def test_a_new_run_directory_is_not_looked_up_as_a_model(files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert make_run(files, "runs/new").compilation is Compilation.NONE  # the Hugging Face Hub has such names


def test_a_resumed_run_refuses_data_that_was_made_again(files, tmp_path, capsys):
    make_run(files, tmp_path / "out").record()
    assert run_record.read(str(tmp_path / "out"))["devices"] == {"replicas": 1, "device": "CPU"}
    saver.CheckpointSaver(str(tmp_path / "out"), 1).save(1, {"global_step": 1})
    make_run(files, tmp_path / "out").record()
    programs.write_pretraining_data(tmp_path / "part-1.tfrecord", 40, seed=9)
    message = r"settings:\n  phases 1: files 2 was 'part-1.tfrecord: 40 records, .*, and is .*\nUse"
    assert_refused(message, make_run(files, tmp_path / "out").record)
    make_run(files, tmp_path / "out", allow_changed_settings=True).record()
    assert "batch size" not in capsys.readouterr().err
    changed = make_run(files, tmp_path / "out", train_batch_size=16, allow_changed_settings=True)
    changed.check_directory()
    changed.record()
    assert run_record.recorded(str(tmp_path / "out"))["train_batch_size"] == 16
    message = "Training continues after example 16 of this phase, so about 8 examples are skipped"
    assert message in capsys.readouterr().err


def test_the_same_files_by_other_paths_are_the_same_data(files, tmp_path, monkeypatch):
    programs.write_pretraining_data(tmp_path / "model.ckpt-1.index")  # is not read
    initial = str(tmp_path / "model.ckpt-1")
    make_run(files, tmp_path / "out", init_checkpoint=initial).record()
    saver.CheckpointSaver(str(tmp_path / "out"), 1).save(1, {"x": 1.0})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    names = ("part-0.tfrecord,link/part-1.tfrecord", "part-1.tfrecord,part-0.tfrecord")
    same, swapped = (PretrainingData(paths, LENGTH, PREDICTIONS) for paths in names)
    make_run(files, "out", data=same, init_checkpoint="link/model.ckpt-1").record()
    changed = make_run(files, "out", data=swapped, init_checkpoint=initial)
    assert_refused(r"phases 1: files 1 was 'part-0.tfrecord", changed.record)
    changed = make_run(files, "out", data=same, init_checkpoint="out/model.ckpt-1")
    assert_refused(r"init_checkpoint was '.*model.ckpt-1', and is '.*out/model.ckpt-1' now", changed.record)


def test_damaged_records_stop_the_run_and_their_files_are_named(files, tmp_path, monkeypatch):
    monkeypatch.setattr(input_pipeline, "_WINDOW_RECORDS", 8)
    damaged, whole = files[2].split(",")
    with open(damaged, "r+b") as file:
        file.seek(20 * (len(file.read()) // 40) + 30)  # inside a record's data, so only the checksum is wrong
        file.write(b"\xff" * 4)
    message = r"after step \d \(part-.*\) is damaged: corrupted record at \d+\. Regenerate"
    assert_refused(message, trained, make_run((*files[:2], damaged), tmp_path / "out"))
    held_out = HeldOutConfig(damaged, batch_size=2, steps=1)
    run = make_run((*files[:2], whole), tmp_path / "held out", do_train=True, held_out=held_out)
    hook = held_out_evaluation(run)
    for failing in (lambda: hook.evaluate(0), lambda: trained(run, [hook])):
        assert_refused(rf"^--eval_input_file: one of {damaged} is damaged: corrupted record", failing)


def test_ids_outside_the_vocabulary_are_noticed_in_the_input_on_every_device(files):
    path = files[2].split(",")[0]
    features = pretraining_features(LENGTH, PREDICTIONS)
    records = [record.numpy() for record in tf.data.TFRecordDataset(path)]
    first = max(parse(features, [records[0]])[name].numpy().max() for name in ("input_ids", "masked_lm_ids"))
    vocab_size, largest = int(first) + 1, int(parse(features, records)["input_ids"].numpy().max())
    assert vocab_size <= largest
    config = BertConfig.from_dict(BertConfig.from_json_file(files[0]).to_dict() | {"vocab_size": vocab_size})
    examples = ExampleFinder(config, "mlm_nsp", "", 0).find(PretrainingData(path, LENGTH, PREDICTIONS))
    batches = input_pipeline.training_batches(examples.shards, examples.features, 40, seed=0, start_step=0)
    data = TrainingData(lambda step, context: batches, describe=lambda step: "part-0")
    with (
        pytest.raises(InputError, match=rf"step 0 \(part-0\) contains the id {largest}, which the model doesn't have"),
        explain_errors(data, "", lambda: 0),
    ):
        next(iter(batches))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"input_ids = -1 is not in \[0, 9\)"):
        parse([Feature("input_ids", 2, limit=9)], [serialize([Feature("input_ids", 2)], {"input_ids": [-1, 8]})])
