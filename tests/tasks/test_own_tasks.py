"""Tests a custom task with two output layers."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import export
from bert_tf.config import ModelFiles
from bert_tf.finetuning.feature_sets import FeatureSet
from bert_tf.finetuning.finetune import finetune
from bert_tf.finetuning.finetuning_config import FinetuningConfig
from bert_tf.finetuning.multi_head_model import MultiHeadModel
from bert_tf.finetuning.task import ReportingTask, Task
from bert_tf.optimization import OptimizerConfig
from bert_tf.runtime.errors import InputError
from bert_tf.sequences.text_packer import TextPacker
from bert_tf.serving.export_config import ExportConfig
from bert_tf.tasks import own_tasks, registry
from bert_tf.tasks.data_config import DataConfig, check_name
from bert_tf.training.settings import TrainingConfig
from tests.conftest import assert_close, assert_refused, tiny_config
from tests.programs import PIECES

pytestmark = [pytest.mark.eager, pytest.mark.plain]
HEADS = {"letter": ["a", "b", "c"], "size": ["short", "long"]}
TEXTS = ["a d", "b d e", "c", "a e f g h", "b", "c d e f g h", "a", "b d e f g"]


@dataclasses.dataclass(frozen=True)
class Example:
    text: str
    letter: str
    size: str


class TwoLabels(Task):
    """Predicts the first letter of a text, and whether the text is long."""

    name = "two_labels"
    output_weights = "heads/letter/output_weights"
    metric_names = ("letter_accuracy", "f1")
    selection_metric = property(lambda self: "letter_accuracy")

    def examples(self, split):
        return [Example(text, text[0], "long" if len(text) > 3 else "short") for text in TEXTS]

    def featurize(self, examples, packer, num_workers=1):
        ids = {
            f"{name}_ids": np.array([classes.index(getattr(example, name)) for example in examples], np.int32)
            for name, classes in HEADS.items()
        }
        sequences = [packer.pack(example.text) for example in examples]
        return FeatureSet.from_sequences(sequences).with_values(**ids)

    def build_model(self, config, **options):
        return MultiHeadModel(config, HEADS, **options)

    def scores(self, outputs, features):
        right = np.argmax(outputs["letter_probabilities"], axis=-1) == features.per_example["letter_ids"]
        return {"letter_accuracy": float(np.mean(right)), "loss": float(np.mean(outputs["loss"]))}

    def input_settings(self):
        return {"heads": HEADS}


@pytest.fixture(autouse=True)
def no_own_tasks(monkeypatch):
    monkeypatch.setattr(own_tasks, "_tasks", {})


@pytest.fixture
def config(tmp_path):
    training = TrainingConfig(str(tmp_path / "run"), OptimizerConfig(3e-3), train_batch_size=4, seed=1)
    return FinetuningConfig(
        model=ModelFiles(), max_seq_length=10, training=training, num_train_epochs=2, do_train=True, do_predict=True
    )


@pytest.fixture
def model(tokenizer):
    return tiny_config(vocab_size=len(PIECES), num_hidden_layers=1), tokenizer


def test_a_task_of_a_program_is_trained_predicted_and_exported(config, model, tmp_path):
    assert ReportingTask is Task  # the earlier name
    own_tasks.register("two_labels", lambda data: TwoLabels())
    task = registry.build_task(DataConfig("two_labels"), "", do_train=True)
    results = finetune(task, config.replace(do_eval=True), model)
    lines = (tmp_path / "run" / "test_results.jsonl").read_text().splitlines()
    predicted = [json.loads(line) for line in lines]
    letters = [HEADS["letter"][np.argmax(line["letter_probabilities"])] for line in predicted]
    right = [letter == text[0] for letter, text in zip(letters, TEXTS, strict=True)]
    assert results["eval"]["dev"]["eval_letter_accuracy"] == np.mean(right)
    export.export_run(str(tmp_path / "run"), str(tmp_path / "exported"), ExportConfig())
    answers = export.load(str(tmp_path / "exported")).predict([{"text": text} for text in TEXTS])
    assert [answer["letter"] for answer in answers] == letters
    for expected, answer in zip(predicted, answers, strict=True):
        assert answer["size_names"] == HEADS["size"]
        for name in HEADS:
            assert_close(answer[f"{name}_probabilities"], expected[f"{name}_probabilities"], 1e-5)


@pytest.mark.parametrize("heads", [{}, {"input": "ab"}, {"a b": "ab"}, {"letter": "aba"}, {"letter": "a"}])
def test_output_layers_that_cannot_be_trained_are_refused(heads):
    message = f"{next(iter(heads))!r} is not a valid name|letter has the classes" if heads else "heads is empty"
    assert_refused(message, MultiHeadModel, tiny_config(vocab_size=8), heads)


def test_examples_without_a_label_can_be_held_out():
    shared = TwoLabels()
    own_tasks.register("two_labels", lambda data: shared)
    config = DataConfig("two_labels", dev_fraction=0.25, selection_metric="f1")
    tasks = [registry.build_task(config, "", do_train=True) for _ in range(2)]
    assert (tasks[0].metric_that_selects, shared.metric_that_selects) == ("f1", "letter_accuracy")
    assert vars(shared) == {}  # the task of the program is not changed
    (train, dev), again = ([task.split(name) for name in ("train", "dev")] for task in tasks)
    assert [train, dev] == again
    assert len(dev) == 2
    assert sorted(map(repr, train + dev)) == sorted(map(repr, TwoLabels().examples("train")))


def test_the_loss_is_the_sum_over_the_output_layers(model):
    task, (bert_config, tokenizer) = TwoLabels(), model
    features = task.featurize(task.examples("train"), TextPacker(tokenizer, 10))
    batch = {name: tf.constant(rows) for name, rows in features.batch(np.arange(len(features)), 10).items()}
    two = task.build_model(bert_config)
    loss, metrics = two.loss(batch, two.totals(batch), None)
    assert_close(loss, np.mean(two.predict(batch)["loss"]), 1e-6)
    assert set(metrics) == set(two.metric_names) == {"letter_accuracy", "size_accuracy"}
    paths = [variable.path for variable in two.variables]
    assert [path for path in paths if "output_weights" in path] == [f"heads/{name}/output_weights" for name in HEADS]


def test_wrong_names_are_refused(model):
    with pytest.raises(InputError, match="there is already a task 'x'"):
        for _ in range(2):
            own_tasks.register("x", lambda data: TwoLabels())
    assert check_name("x") == "x"
    for name in ("mnli", "text", "squad", "all"):
        assert_refused(f"there is already a task '{name}'", own_tasks.register, name, lambda data: TwoLabels())
    assert_refused("'Two Labels' is not a name", own_tasks.register, "Two Labels", lambda data: TwoLabels())


def test_a_run_without_names_of_classes_needs_a_function_for_the_export(config, model, tmp_path, monkeypatch):
    monkeypatch.setattr(TwoLabels, "input_settings", lambda self: {})
    finetune(TwoLabels(), config.replace(num_train_steps=1, do_predict=False), model)
    with pytest.raises(InputError, match=r"has the unknown task 'two_labels'.*Export a task of your own"):
        export.export_run(str(tmp_path / "run"), str(tmp_path / "exported"))
    own_tasks.register("two_labels", lambda data: TwoLabels())
    assert_refused("does not record 'heads'", export.export_run, str(tmp_path / "run"), str(tmp_path / "exported"))
