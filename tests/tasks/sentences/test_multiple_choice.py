import json

import keras
import numpy as np
import pytest

from bert_tf.runtime.files import InputError
from bert_tf.sequences.text_packer import TextPacker
from bert_tf.tasks.data_config import DataConfig
from bert_tf.tasks.registry import build_task
from tests.conftest import assert_close, assert_refused, data_path, loss_and_gradients, tiny_config
from tests.programs import PIECES

# The columns of SWAG's published files.
SWAG = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n"
SWAG_ROW = '0,v,1,s,"a, b",c,gold,d,e,f,g,2\n'
HEADER = "prompt\tending0\tending1\tlabel\n"
UNEVEN = "prompt\tending0\tending1\tending2\tlabel\n"
GOOD = '{"prompt": "p", "endings": ["a", "b", "c"], "label": 1}\n'


def task_of(write, name, file, text, split="train", **options):
    return task_on(name, **{f"{split}_file": write(file, text)}, **options)


def task_on(name, **options):
    return build_task(DataConfig(name, **options), "", do_train=True)


def test_published_rows():
    swag = task_on("swag", dev_file=str(data_path("swag/swag_fixture.csv")))
    assert len(swag.examples("dev")) == 11
    codah = task_on("codah", train_file=str(data_path("codah/train.tsv")))
    assert len(codah.examples("train")) == 1665
    assert codah.labels == ("0", "1", "2", "3")


@pytest.mark.parametrize(
    ("name", "file", "text", "expected"),
    [
        ("swag", "a.csv", SWAG + SWAG_ROW, ("a, b", ("c d", "c e", "c f", "c g"), "2")),  # continues "sent2"
        ("codah", "a.tsv", "i\tp\ta\tb\tc\td\t3\n", ("p", ("a", "b", "c", "d"), "3")),  # has no header
        ("multiple_choice", "a.tsv", HEADER + "p\ta\tb\t1\n", ("p", ("a", "b"), "1")),
        ("multiple_choice", "a.jsonl", GOOD, ("p", ("a", "b", "c"), "1")),
    ],
)
def test_rows_of_all_forms(write, name, file, text, expected):
    task = task_of(write, name, file, text)
    (example,) = task.examples("train")
    assert (example.prompt, example.endings, example.label) == expected
    assert task.labels == tuple(map(str, range(len(example.endings))))


@pytest.mark.parametrize(
    ("name", "text", "labels"),
    [
        ("multiple_choice", HEADER + "p\ta\tb\t1\nq\ta\tb\t0\n", ["1", "0"]),
        ("multiple_choice", HEADER + "p\ta\tb\t-1\n", [None]),
        ("codah", "i\tp\ta\tb\tc\td\t3\ni\tp\ta\tb\tc\td\t1\n", ["3", "1"]),
    ],
)
def test_test_sets_may_have_labels(write, name, text, labels):
    task = task_of(write, name, "test.tsv", text, split="test")
    assert [example.label for example in task.examples("test")] == labels


def test_each_ending_has_a_sequence_with_the_prompt(write, tokenizer):
    text = "prompt\tending0\tending1\tlabel\nm n\tk\tk l\t1\nm\to\tp\t0\n"
    task = task_of(write, "multiple_choice", "a.tsv", text)
    features = task.featurize(task.examples("train"), TextPacker(tokenizer, 16))
    assert (len(features), features.choices) == (2, 2)
    batch = features.batch(np.array([0, 1]), 8)
    tokens = [tokenizer.convert_ids_to_tokens(row.tolist()) for row in batch["input_ids"]]
    assert tokens[1] == ["[CLS]", "m", "n", "[SEP]", "k", "l", "[SEP]", "[PAD]"]
    assert batch["segment_ids"][1].tolist() == [0, 0, 0, 0, 1, 1, 1, 0]
    assert batch["label_ids"].tolist() == [1, 0]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("a.tsv", UNEVEN + "m n\tk\tk l\t\t1\nm\to\tp\tk l\t2\n"),
        (
            "a.jsonl",
            '{"prompt": "m n", "endings": ["k", "k l"], "label": 1}\n'
            '{"prompt": "m", "ending0": "o", "ending1": "p", "ending2": "k l", "label": 2}\n',
        ),
    ],
)
def test_missing_endings_have_no_probability_and_no_loss(write, tokenizer, file, text):
    task = task_of(write, "multiple_choice", file, text)
    examples = task.examples("train")
    assert [len(example.endings) for example in examples] == [2, 3]
    assert task.labels == ("0", "1", "2")
    assert task.input_settings() == {}
    more = write("dev.jsonl", '{"prompt": "m", "endings": ["k", "l", "m", "n"], "label": 3}\n')
    assert len(task_of(write, "multiple_choice", file, text, dev_file=more).labels) == 4

    keras.utils.set_random_seed(1)
    model = task.build_model(tiny_config(vocab_size=len(PIECES)))
    batch = task.featurize(examples, TextPacker(tokenizer, 16)).batch(np.array([0, 1]), 8)
    outputs = model.predict(batch)
    assert outputs["probabilities"][0, 2] == 0
    # In a batch of its own, an example has the same scores and loss.
    for number, example in enumerate(examples):
        row = {"prompt": example.prompt, "endings": example.endings, "label": int(example.label)}
        own = task_of(write, "multiple_choice", "own.jsonl", json.dumps(row) + "\n")
        model.choices = len(own.labels)
        alone = model.predict(own.featurize(own.examples("train"), TextPacker(tokenizer, 16)).batch(np.array([0]), 8))
        assert_close(outputs["probabilities"][number, : len(own.labels)], alone["probabilities"][0], 1e-6)
        assert_close(outputs["per_example_loss"][number], alone["per_example_loss"][0], 1e-6)
    model.choices = 3
    loss, _, gradients = loss_and_gradients(model, batch, seed=None)
    assert_close(loss, np.mean(outputs["per_example_loss"]), 1e-6)
    assert all(np.isfinite(gradient).all() for gradient in gradients)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("a.tsv", HEADER + "p\ta\tb\t2\n", "line 2: the label '2' .* 0 to 1"),
        ("a.tsv", HEADER + "p\ta\t \t0\n", "line 2: the ending 1 is empty"),
        ("a.tsv", "prompt\tending0\tlabel\np\ta\t0\n", "line 2: .* ending0, ending1"),
        ("a.tsv", "prompt\tending1\tending2\tlabel\np\ta\tb\t1\n", "line 2: .* ending1, ending2 .* ending0"),
        ("a.tsv", "id\t" + HEADER + "7\tp\ta\tb\t0\n7\tp\ta\tb\t0\n", "line 3: the id '7' .* line 2"),
        ("a.jsonl", '{"prompt": "p", "endings": "abc", "label": 0}\n', "line 1: 'endings' is not a list"),
        ("a.jsonl", '{"prompt": "p", "endings": null, "label": 0}\n', "line 1: 'endings' is not a list"),
        ("a.jsonl", '{"prompt": "p", "endings": ["a"], "label": 0}\n', "line 1: .* ending0, ending1"),
        ("a.jsonl", '{"prompt": "p", "endings": ["a", null], "label": 0}\n', "line 1: the ending 1 is empty"),
        ("a.jsonl", GOOD + '{"prompt": "p", "endings": ["a"], "label": 0}\n', "line 2: .* fewer than two endings"),
        ("a.tsv", HEADER + "p\ta\t\t0\n", "line 2: .* fewer than two endings"),
        ("a.tsv", UNEVEN + "p\ta\tb\t\t2\n", "line 2: the label '2' .* 0 to 1"),
        ("a.tsv", UNEVEN + "p\ta\t\tc\t0\n", "line 2: the ending 1 is empty"),
    ],
)
def test_bad_rows_are_reported_or_skipped(write, file, text, message):
    assert_refused(message, task_of(write, "multiple_choice", file, text).examples, "train")
    if file == "a.jsonl":
        skipping = task_of(write, "multiple_choice", file, "no JSON\n" + GOOD + text, on_bad_row="skip")
        assert {example.label for example in skipping.examples("train")} == {"1"}


def test_what_is_only_predicted_may_be_blank(write):
    task = task_of(write, "multiple_choice", "a.jsonl", '{"prompt": "", "endings": ["a", " "]}\n', "test")
    assert (task.examples("test")[0].prompt, task.examples("test")[0].endings) == ("", ("a", " "))
    with pytest.raises(InputError, match="line 1: the ending 1 is empty"):  # exported models treat it as padding
        task_of(write, "multiple_choice", "a.jsonl", '{"prompt": "p", "endings": ["a", ""]}\n', "test").examples("test")


def test_a_label_is_the_number_in_the_name_of_its_ending(write):
    names = ["ending1", "ending10", *(f"ending{i}" for i in range(2, 10)), "ending0"]  # ending0 is out of order
    text = "\t".join(["prompt", *names, "label"]) + "\n" + "\t".join(["p", *names, " 10 "]) + "\n"
    (example,) = task_of(write, "multiple_choice", "a.tsv", text).examples("train")
    assert example.endings == tuple(f"ending{i}" for i in range(11))
    assert example.label == "10"
    swapped = '{"prompt": "p", "ending1": "b", "ending0": "a", "label": 0, "id": null}\n'
    (example,) = task_of(write, "multiple_choice", "a.jsonl", swapped).examples("train")
    assert (example.endings, example.guid) == (("a", "b"), "1")


@pytest.mark.parametrize("first", [0, 1])
def test_labels_that_count_from_1_are_reported(write, capsys, first):
    text = "prompt,ending0,ending1,ending2,label\n" + "".join(f"p,a,b,c,{first + i % 2}\n" for i in range(50))
    task = task_of(write, "multiple_choice", "a.csv", text)
    task.check_training_set(task.examples("train"))
    assert ("no row has the label 0" in capsys.readouterr().err) == (first == 1)
