import numpy as np
import pytest

from bert_tf.sequences import packed_rows, placement
from bert_tf.sequences.packed_rows import Tokens
from bert_tf.sequences.placement import MicroBatch, Packer, Shape, Sizes

LENGTH = 64


def random_sizes(rng, examples=32, choices=1, most_predictions=0):
    lengths = np.clip(rng.lognormal(3, 0.5, (examples, choices)), 3, LENGTH).astype(int)
    lengths[:, 1:] *= rng.random((examples, choices - 1)) < 0.7  # some examples have fewer choices
    return Sizes(lengths, np.minimum(lengths.sum(axis=1) // 4, most_predictions))


def samples(steps, **options):
    rng = np.random.default_rng(1)
    return [random_sizes(rng, **options) for _ in range(steps)]


def occupied(layout, sizes):
    """Returns the number of the sequence, from 1, at each position of each micro-batch; 0 for padding."""
    found = np.zeros((len(layout.examples), layout.rows * layout.length), int)
    for number, (examples, starts) in enumerate(zip(layout.examples, layout.starts, strict=True)):
        for example, places in zip(examples, starts, strict=True):
            for choice, place in enumerate(places) if example >= 0 else ():
                length = sizes.lengths[example, choice]
                span = slice(place, place + length)
                assert not found[number, span].any()
                assert not length or place // layout.length == (place + length - 1) // layout.length  # in one row
                found[number, span] = example * sizes.lengths.shape[1] + choice + 1
    return found


def check(placed, sizes):
    """Checks that every example is in one micro-batch, with all its tokens and predictions."""
    layouts = [layout for own in placed for layout in own]
    examples = np.concatenate([layout.examples.reshape(-1) for layout in layouts])
    assert sorted(examples[examples >= 0]) == list(range(len(sizes.lengths)))
    assert sum((occupied(layout, sizes) > 0).sum() for layout in layouts) == sizes.lengths.sum()
    for layout in layouts:
        for own in layout.examples:
            assert sizes.predictions[own[own >= 0]].sum() <= layout.predictions
        assert (layout.examples[layout.used :] == -1).all()


@pytest.mark.parametrize("options", [{}, {"choices": 4}, {"most_predictions": 10}], ids=str)
@pytest.mark.parametrize(("replicas", "micro_batches"), [(1, 1), (4, 1), (2, 4)])
@pytest.mark.parametrize("shares", [True, False])
def test_each_example_of_each_step_has_a_place(replicas, micro_batches, shares, options):
    growing = Packer(replicas, micro_batches, shares=shares)
    fixed = growing.with_shape(samples(20, **options), LENGTH, options.get("most_predictions", 0))
    used = []
    for sizes in samples(50, **options):
        placed, exact = fixed.place(sizes, LENGTH), growing.place(sizes, LENGTH)
        check(placed, sizes)
        check(exact, sizes)
        used += [own[1].used for own in placed if own[1:]]
        assert len({(own[0].rows, own[0].predictions) for own in exact}) == 1  # so the parts can be stacked
        for packer in (placed, exact):
            size = len(sizes.lengths) // replicas
            if not shares:
                for replica, own in enumerate(packer):
                    found = np.concatenate([layout.examples.reshape(-1) for layout in own])
                    assert sorted(found[found >= 0]) == list(range(replica * size, replica * size + size))
    assert not used or np.mean(used) < 0.5


@pytest.mark.parametrize(("choices", "most"), [(1, 0), (3, 0), (1, 20)])
def test_the_longest_examples_fit_into_a_shape_for_short_ones(choices, most):
    packer = Packer(1, 2).with_shape(samples(20, choices=choices, most_predictions=most // 4), LENGTH, most)
    sizes = Sizes(np.full((32, choices), LENGTH), np.full(32, most))
    placed = packer.place(sizes, LENGTH)
    check(placed, sizes)
    assert placed[0][1].used > 1


def test_parts_have_about_equally_many_tokens():
    packer = Packer(8, 2)
    for sizes in samples(20, examples=256):
        tokens = [sizes.lengths[examples].sum() for own in packer.place(sizes, LENGTH) for examples in own[0].examples]
        assert max(tokens) - min(tokens) <= LENGTH


@pytest.mark.parametrize(("examples", "most_gap"), [(32, 0.16), (256, 0.08)])
def test_few_positions_of_a_shape_are_padding(examples, most_gap):
    packer = Packer().with_shape(samples(64, examples=examples), LENGTH)
    tokens = positions = 0
    for sizes in samples(200, examples=examples):
        ((own, *spills),) = packer.place(sizes, LENGTH)
        tokens += sizes.lengths.sum()
        positions += LENGTH * (own.rows + sum(spill.used * spill.rows for spill in spills))
    assert 1 - tokens / positions <= most_gap


def test_without_short_sequences_each_sequence_has_a_row():
    sizes = Sizes(np.full((8, 1), 60), np.full(8, 3))
    assert Packer().with_shape([sizes], LENGTH, 5).shape[:2] == (8, 40)
    assert Packer().with_shape([sizes], LENGTH, 5).shape.spills == 0


def test_pack():
    tokens = Tokens(
        {"input_ids": (np.arange(100, 110, dtype=np.int32), 0), "tag_ids": (np.arange(10), -1)},
        firsts=np.array([0, 3, 6]),
        lengths=np.array([3, 2, 4]),
        first_lengths=np.array([2, 2, 1]),
    )
    sizes = Sizes.of(tokens.lengths[:, np.newaxis])
    batch = MicroBatch(5, slots=4, rows=3)
    assert placement.fill([batch], sizes, [2, 0, 1]) == []
    placed = placement.layout([batch], sizes, 3, 4)
    found = packed_rows.pack(placed, tokens, {"label_ids": np.array([7, 8, 9])})
    assert found["input_ids"].tolist() == [[106, 107, 108, 109, 0], [100, 101, 102, 103, 104], [0] * 5]
    assert found["tag_ids"].tolist() == [[6, 7, 8, 9, -1], [0, 1, 2, 3, 4], [-1] * 5]
    assert found["segment_ids"].tolist() == [[0, 1, 1, 1, 0], [0, 0, 1, 0, 0], [0] * 5]
    assert found["sequence_ids"].tolist() == [[1, 1, 1, 1, 0], [2, 2, 2, 3, 3], [0] * 5]
    assert found["position_ids"].tolist() == [[0, 1, 2, 3, 0], [0, 1, 2, 0, 1], [0] * 5]
    assert found["sequence_starts"].tolist() == [0, 5, 8, 0]
    assert found["sequence_lengths"].tolist() == [4, 3, 2, 0]
    assert found["label_ids"].tolist()[:3] == [9, 7, 8]

    positions, weights = np.array([[2, 0], [1, 0], [0, 3]]), np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 1.0]])
    predictions = packed_rows.pack_predictions(placed, positions, weights, {"masked_lm_ids": positions + 40})
    assert predictions["masked_lm_positions"].tolist() == [0, 3, 7, 9]
    assert predictions["masked_lm_ids"].tolist() == [40, 43, 42, 41]
    assert predictions["masked_lm_weights"].tolist() == [1, 1, 1, 1]


def test_a_shape_depends_on_the_sample_only():
    shape = Packer(2).with_shape(samples(30), LENGTH).shape
    assert shape == Packer(2).with_shape(samples(30), LENGTH).shape
    assert isinstance(shape, Shape)
