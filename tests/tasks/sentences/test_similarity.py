"""Tests the training of sentence vectors: losses, scores and readers."""

import json

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.finetuning.similarity_model import batch_loss
from bert_tf.sequences.text_packer import TextPacker
from bert_tf.tasks.data_config import DataConfig, SimilarityConfig
from bert_tf.tasks.registry import build_task
from bert_tf.tasks.sentences.similarity import scores_of
from tests.conftest import assert_close, assert_refused

pytestmark = [pytest.mark.eager, pytest.mark.plain]


def values_of(count, choices, ids=None, unused=()):
    vectors = np.random.default_rng(3).normal(size=(count, choices, 5)).astype(np.float32)
    exists = np.array([number not in unused for number in range(count)], np.float32)
    ids = np.arange(count * choices).reshape(count, choices) if ids is None else np.array(ids)
    return {"vectors": vectors, "text_ids": ids.astype(np.float32), "exists": exists}


def loss_of(values, is_symmetric=False):
    tensors = {name: tf.constant(x) for name, x in values.items()}
    return float(batch_loss(tensors, 20.0, is_symmetric))


def cross_entropies(queries, targets, negatives):
    """Returns the cross entropies, one query after another. `negatives` has the negatives of each query."""

    def cosine(a, b):
        return a @ b / np.linalg.norm(a) / np.linalg.norm(b)

    losses = []
    for query, target, others in zip(queries, targets, negatives, strict=True):
        logits = 20 * np.array([cosine(query, other) for other in (target, *others)], np.float64)
        losses.append(np.log(np.exp(logits).sum()) - logits[0])
    return losses


@pytest.mark.parametrize("choices", [2, 3])
def test_all_other_positives_and_all_negatives_of_the_batch_are_negatives(choices):
    values = values_of(4, choices)
    anchors, positives, *hard = np.moveaxis(values["vectors"], 1, 0)
    hard = list(hard[0]) if hard else []
    others = [[*np.delete(positives, number, 0), *hard] for number in range(4)]
    forward = cross_entropies(anchors, positives, others)
    backward = cross_entropies(positives, anchors, [np.delete(anchors, number, 0) for number in range(4)])
    assert_close(loss_of(values), np.mean(forward), 1e-5)
    assert_close(loss_of(values, is_symmetric=True), np.mean(forward + backward), 1e-5)


def test_equal_texts_and_unused_slots_are_no_negatives():
    # Rows 0 and 1 have the same anchor, rows 1 and 2 the same positive. The positive of row 3 is the anchor of row 0.
    values = values_of(5, 3, [[0, 1, 10], [0, 2, 1], [3, 2, 11], [4, 0, 12], [5, 6, 13]], unused=[4])
    anchors, positives, hard = np.moveaxis(values["vectors"], 1, 0)
    for_anchors = [
        [positives[2], hard[0], hard[2], hard[3]],
        [hard[0], hard[1], hard[2], hard[3]],
        [positives[0], positives[3], *hard[:4]],
        [positives[0], positives[1], positives[2], *hard[:4]],
    ]
    for_positives = [[anchors[2], anchors[3]], [anchors[3]], [anchors[0], anchors[3]], [anchors[2]]]
    forward = cross_entropies(anchors[:4], positives[:4], for_anchors)
    backward = cross_entropies(positives[:4], anchors[:4], for_positives)
    assert_close(loss_of(values), np.mean(forward), 1e-5)
    assert_close(loss_of(values, is_symmetric=True), np.mean(forward + backward), 1e-5)


def test_the_loss_of_scores_is_the_squared_error_of_cosines():
    scores = np.array([0.5, -1.0, 0.0], np.float32)
    values = values_of(3, 2, unused=[2]) | {"scores": scores}
    first, second = np.moveaxis(values["vectors"], 1, 0)
    cosines = np.sum(first * second, axis=1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)
    assert_close(loss_of(values), np.mean((cosines - scores)[:2] ** 2), 1e-5)


def test_recall_counts_any_positive_of_the_anchor_and_ignores_the_anchor_itself():
    near, far = [1.0, 0.0], [0.0, 1.0]
    vectors = np.array([[near, [0.9, 0.1]], [near, [0.5, 0.5]], [far, near], [[0.8, 0.3], far]], np.float32)
    # Rows 0 and 1 have the same anchor, which is the positive of row 2.
    text_ids = np.array([[0, 1], [0, 2], [3, 0], [4, 3]])
    assert scores_of(vectors, text_ids, None) == {"recall_at_1": 0.5}
    assert scores_of(vectors, text_ids, np.array([1.0, 0.5, 0.0, 0.2]))["spearman"] == pytest.approx(1.0)


def task_of(write, rows, **options):
    path = write("rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    config = DataConfig("similarity", train_file=path, similarity=SimilarityConfig(**options))
    return build_task(config, "", do_train=True)


PAIR, SCORED = {"anchor": "a", "positive": "b"}, {"sentence1": "a", "sentence2": "b", "score": 0.5}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"text": "a", "label": 1}], "line 1: the columns are 'text', 'label'. Name the texts 'anchor' and 'pos"),
        ([PAIR | {"positive": " "}], "line 1: the positive is empty"),
        ([PAIR | {"anchor": None}], "line 1: the anchor is empty"),
        ([PAIR | {"negative": ["b"]}], "line 1: the negative is empty or not a text"),
        ([SCORED | {"score": 5}], "line 1: the score is '5'. Use a number from -1 to 1, or .* --max_score"),
        ([SCORED | {"score": "high"}], "line 1: the score is 'high'"),
        ([PAIR | {"negative_1": "c"}], "line 1: the column 'negative_1' is not used"),
        ([PAIR | {"similarity_score": 1}], "line 1: the column 'similarity_score' is not used"),
        ([SCORED | {"label": 1}], "line 1 has the columns 'score' and 'label'"),
        ([PAIR | {"score": 1, "negative": "c"}], "line 1: there are a negative and a score"),
        ([PAIR, PAIR | {"negative": "c"}], r"rows.jsonl: one of the rows 1 and 2 has no score or no negative"),
    ],
)
def test_rows_that_can_not_be_used_are_refused(write, rows, message):
    assert_refused(message, task_of(write, rows).split, "train")


def test_texts_scores_and_prompts_become_features(write, tokenizer):
    task = task_of(write, [SCORED | {"score": 3, "sentence2": "a"}, SCORED], max_score=5.0)
    task = task.replace(vectors=task.vectors.replace(prompt="x "))
    features = task.featurize(task.split("train"), TextPacker(tokenizer, 16))
    assert features.per_example["text_ids"].tolist() == [[0, 0], [0, 1]]
    assert_close(features.per_example["scores"], [0.6, 0.1], 1e-6)
    batch = features.batch(np.array([1]), 4)
    assert tokenizer.convert_ids_to_tokens(batch["input_ids"][1].tolist()) == ["[CLS]", "x", "b", "[SEP]"]


@pytest.mark.parametrize(("row", "kind"), [(PAIR, "positive"), (SCORED, "score")])
def test_a_training_set_without_differences_is_refused(write, row, kind):
    task = task_of(write, [row, row])
    assert_refused(f"every {kind} is the same", task.check_training_set, task.split("train"))


def test_negatives_that_are_positives_are_reported(write, capsys):
    task = task_of(write, [PAIR | {"negative": text} for text in ("b", "c")])
    task.check_training_set(task.split("train"))
    assert "1 negatives are equal to the anchor or the positive" in capsys.readouterr().err
