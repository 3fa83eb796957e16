"""Flags that several programs share, and the settings that they become."""

import ast
import json
import math
import subprocess
import sys

import pytest
from absl import flags
from absl.testing import flagsaver

from bert_tf import program_flags
from bert_tf.distribution.devices import DistributionConfig
from bert_tf.optimization.settings import OptimizerConfig
from bert_tf.program_flags import values
from bert_tf.runtime import settings
from bert_tf.runtime.files import InputError
from bert_tf.serving.export_config import ExportConfig
from bert_tf.tokenization.vocabulary import SPECIAL_TOKENS
from bert_tf.training.settings import TrainingConfig
from tests import programs
from tests.conftest import tiny_config


def defined(group, *arguments, **options):
    """A group of flags, in place of flags that a program has that another test imported."""
    modules = flags.FLAGS.flags_by_module_dict()
    of_absl = {flag for module, found in modules.items() if module.startswith("absl") for flag in found}
    # Flags that were put back have no module.
    others = {name: flags.FLAGS[name] for name in flags.FLAGS if flags.FLAGS[name] not in of_absl}
    for name in others:
        delattr(flags.FLAGS, name)
    known = set(flags.FLAGS)
    try:
        made = group(*arguments, **options)
        flags.FLAGS.mark_as_parsed()
        yield made
    finally:
        for name in set(flags.FLAGS) - known:
            delattr(flags.FLAGS, name)
        for name, flag in others.items():
            flags.FLAGS[name] = flag


@pytest.fixture
def sizes():
    yield from defined(program_flags.ModelSizeFlags)


@pytest.fixture
def model():
    yield from defined(program_flags.ModelFlags)


@pytest.fixture
def devices():
    yield from defined(program_flags.DistributionFlags)


@pytest.fixture
def training():
    yield from defined(program_flags.TrainingFlags)


def test_the_files_and_the_casing_of_a_model_are_found_where_they_are_not_given(model, write):
    with pytest.raises(InputError, match="--bert_config_file is needed, because --init_checkpoint is not given"):
        model.read()
    config = tiny_config(vocab_size=7)
    path = write("run/bert_config.json", config.to_json_string())
    folder = path.removesuffix("/bert_config.json")
    with pytest.raises(InputError, match=f"--vocab_file is needed, because there is no such file in {folder}"):
        model.read(folder)
    for piece, lower in (("a", True), ("A", False)):
        write("run/vocab.txt", "\n".join((*SPECIAL_TOKENS, piece, "b")) + "\n")
        read, tokenizer = model.read(folder)
        assert read == config and tokenizer.do_lower_case == lower
        with flagsaver.as_parsed(do_lower_case=str(not lower)), pytest.raises(InputError, match="Set --do_lower_case"):
            model.read(folder)
    other = write("other.json", tiny_config(vocab_size=6).to_json_string())
    with flagsaver.as_parsed(bert_config_file=other), pytest.raises(InputError, match="vocab_size is 6"):
        model.read(folder)


@pytest.mark.parametrize("kind", [DistributionConfig, OptimizerConfig, TrainingConfig, ExportConfig])
def test_flags_of_settings_have_the_defaults_of_the_settings(kind):
    for made in defined(values.SettingsFlags, kind, learning_rate=5e-5):
        defaults = {field.name: field.default for field in settings.fields(kind) if field.help}
        assert made.given() == (defaults | {"learning_rate": 5e-5} if kind is OptimizerConfig else defaults)


def test_flags_of_devices_become_settings(devices):
    assert devices.config() == DistributionConfig()
    with flagsaver.as_parsed(use_tpu="true", master="grpc://a", worker_timeout="7"):
        assert devices.config() == DistributionConfig("tpu", "grpc://a", worker_timeout=7)


def test_flags_of_training_become_settings(training):
    assert training.config("x", 10, 2) == TrainingConfig("x", OptimizerConfig(5e-5, 10, 2))
    with flagsaver.as_parsed(adam_beta_1="0.8", random_seed="3", clip_norm="inf", profile_steps="1:2"):
        expected = OptimizerConfig(5e-5, 10, 2, beta_1=0.8, clip_norm=math.inf)
        assert training.config("x", 10, 2) == TrainingConfig("x", expected, seed=3, profile_steps=(1, 2))
    for name, value in (
        ("adam_beta_1", "1"),
        ("train_batch_size", "0"),
        ("random_seed", "-1"),
        ("profile_steps", "2:1"),
    ):
        with flagsaver.as_parsed(**{name: value}), pytest.raises(InputError) as raised:
            training.config("x", 10, 2)
        assert raised.value.place == f"--{name}"


DEFAULTS = """
import sys
import run_classifier
from absl import flags

run_classifier.fine_tune = lambda names: print([getattr(flags.FLAGS, name) for name in sys.argv[1].split(",")])
flags.FLAGS(["run_classifier.py", "--task_name=ner", "--output_dir=x", *sys.argv[2:]])
run_classifier.main()
"""


def defaults(names, *given):
    """The values of flags when run_classifier.py trains."""
    command = [sys.executable, "-c", DEFAULTS, names, *given]
    return ast.literal_eval(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_a_sweep_tries_what_the_paper_does_and_a_fresh_bilstm_trains_faster_and_longer():
    names = "sweep_batch_sizes,sweep_learning_rates,sweep_epochs,learning_rate,num_train_epochs"
    sweep = [["16", "32"], ["5e-5", "3e-5", "2e-5"], ["2", "3", "4"]]
    assert defaults(names) == [*sweep, 5e-5, 3.0]
    assert defaults(names, "--feature_layers=-1") == [*sweep, 1e-3, 10.0]


def test_a_new_output_layer_must_be_trained():
    flag = program_flags.FreshHeadFlag()
    flags.FLAGS.mark_as_parsed()
    flag.check(do_train=False)
    with flagsaver.flagsaver(reset_head=True):
        flag.check(do_train=True)
        with pytest.raises(InputError, match="--do_train is not given"):
            flag.check(do_train=False)
    delattr(flags.FLAGS, "reset_head")


def test_a_released_size_and_its_changes_become_a_config(sizes, write):
    flags.FLAGS.mark_as_parsed()
    vocab = write("vocab.txt", "[PAD]\n[UNK]\na\n")
    with flagsaver.as_parsed(model_size="mini", num_hidden_layers="3"):
        config = sizes.config(None, vocab)
        assert (config.num_hidden_layers, config.hidden_size, config.intermediate_size) == (3, 256, 1024)
        assert config.vocab_size == 3
    with flagsaver.as_parsed(model_size="mini", hidden_size="128", num_attention_heads="2"):
        config = sizes.config(None, vocab)
        assert (config.hidden_size, config.intermediate_size, config.num_attention_heads) == (128, 512, 2)
    with flagsaver.as_parsed(model_size="tiny", hidden_dropout_prob="0", initializer_range="0.1"):
        config = sizes.config(None, vocab)
        assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0.0, 0.1)
        assert config.initializer_range == 0.1


def test_a_config_file_takes_the_place_of_a_size(sizes, write):
    flags.FLAGS.mark_as_parsed()
    path = write("bert_config.json", json.dumps(tiny_config().to_dict()))
    assert sizes.config(path, None) == tiny_config()
    assert sizes.config(None, None, found=path) == tiny_config()
    with flagsaver.flagsaver(model_size="mini", hidden_dropout_prob=0.0):  # as a recipe sets them
        assert sizes.config(path, None) == tiny_config()
    with flagsaver.as_parsed(model_size="mini"):
        assert sizes.config(None, write("vocab.txt", "a\n"), found=path).hidden_size == 256
    with flagsaver.as_parsed(model_size="mini"), pytest.raises(InputError, match="Either --bert_config_file or"):
        sizes.config(path, None)
    with flagsaver.as_parsed(model_size="mini"), pytest.raises(InputError, match="--model_size needs --vocab_file"):
        sizes.config(None, None)
    with pytest.raises(InputError, match="Either --bert_config_file or"):
        sizes.config(None, "vocab.txt")


def test_defaults_are_set_except_for_given_flags():
    flags.DEFINE_float("rate_of_a_test", 5e-5, "A rate.")
    flags.FLAGS.mark_as_parsed()
    try:
        program_flags.set_defaults({"rate_of_a_test": 1e-3})
        assert flags.FLAGS.rate_of_a_test == 1e-3
        with flagsaver.as_parsed(rate_of_a_test="1e-4"):
            program_flags.set_defaults({"rate_of_a_test": 2e-3})
            assert flags.FLAGS.rate_of_a_test == 1e-4
    finally:
        delattr(flags.FLAGS, "rate_of_a_test")


def test_numbers_of_a_list_flag():
    holder = flags.DEFINE_list("numbers_of_a_test", [], "Numbers.")
    flags.FLAGS.mark_as_parsed()
    try:
        with flagsaver.as_parsed(numbers_of_a_test="16,32"):
            assert program_flags.numbers(holder, int) == [16, 32]
        for wrong in ("", "16,x", "1.5"):
            with (
                flagsaver.as_parsed(numbers_of_a_test=wrong),
                pytest.raises(InputError, match="--numbers_of_a_test is"),
            ):
                program_flags.numbers(holder, int)
    finally:
        delattr(flags.FLAGS, "numbers_of_a_test")


def test_steps_to_profile():
    holder = flags.DEFINE_string("steps_of_a_test", None, "Steps.")
    flags.FLAGS.mark_as_parsed()
    try:
        assert program_flags.step_range(holder) is None
        with flagsaver.as_parsed(steps_of_a_test="100:105"):
            assert program_flags.step_range(holder) == (100, 105)
        for wrong in ("100", "100:", "-1:5", "a:b"):
            with (
                flagsaver.as_parsed(steps_of_a_test=wrong),
                pytest.raises(InputError, match="--steps_of_a_test is"),
            ):
                program_flags.step_range(holder)
    finally:
        delattr(flags.FLAGS, "steps_of_a_test")


PREPARATION = "-m data_prep.create_pretraining_data --input_file={text} --output_file=x --vocab_file={vocab}"


@pytest.mark.parametrize(
    ("given", "needed"),
    [
        ("run_classifier.py --task_name=rte --output_dir=x --sweep_epochs=2", "sweep"),
        ("run_classifier.py --task_name=ner --output_dir=x --feature_combination=concat", "feature_layers"),
        ("run_squad.py --output_dir=x --do_predict --export_dir=x", "do_export"),
        ("run_squad.py --output_dir=x --do_predict --tune_null_threshold", "version_2_with_negative"),
        ("run_pretraining.py --input_file=x --output_dir=x --second_max_seq_length=512", "second_input_file"),
        ("run_pretraining.py --input_file=x --output_dir=x --eval_steps=5", "eval_input_file"),
        (f"{PREPARATION} --language=de", "split_sentences"),
        (f"{PREPARATION} --word_segmenter=jieba:lcut", "do_whole_word_mask"),
    ],
)
def test_flags_that_need_another_are_refused_without_it(given, needed):
    output = programs.run(*given.split(), expect=1)
    name = given.rpartition("--")[2].partition("=")[0]
    assert f"error: --{name} is used only with --{needed}, which is not given. Give it too, or omit --{name}." in output


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (f"{PREPARATION} --objective=ltr --masking_policy=1,0,0", "--masking_policy: not used with --objective=ltr"),
        (
            f"{PREPARATION} --masking=dynamic --max_predictions_per_seq=9",
            "--max_predictions_per_seq: not used with",
        ),
        (f"{PREPARATION} --text_column=body", "--text_column is for JSON lines and Parquet"),
        (
            "-m data_prep.build_vocab --input_file={text} --output_file=x --text_column=body",
            "--text_column is for JSON",
        ),
    ],
)
def test_flags_that_nothing_would_read_are_refused(tmp_path, given, message):
    text, vocab = tmp_path / "text.txt", tmp_path / "vocab.txt"
    text.write_text("a b\n")
    vocab.write_text("\n".join(programs.PIECES))
    output = programs.run(*given.format(text=text, vocab=vocab).split(), expect=1)
    assert f"error: {message}" in output


def test_data_is_made_with_the_casing_beside_the_vocabulary(tmp_path):
    text, vocab = tmp_path / "text.txt", tmp_path / "vocab.txt"
    text.write_text("a b\n")
    vocab.write_text("\n".join([*programs.PIECES[:5], "你", "好"]))
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    output = programs.run(*PREPARATION.format(text=text, vocab=vocab).split(), expect=1)
    assert "--do_lower_case is True, but tokenizer_config.json beside" in output
