import random

import tensorflow as tf

from bert_tf.sequences import packing
from bert_tf.sequences.graph_packing import GraphPacker

VOCAB = {"[CLS]": 101, "[SEP]": 102}


def test_packs_as_python_does():
    rng = random.Random(0)
    first = [[rng.randint(1, 9) for _ in range(rng.randint(0, 15))] for _ in range(300)]
    second = [[rng.randint(1, 9) for _ in range(rng.choice([0, 1, 2, 5, 8, 15]))] for _ in range(300)]
    graph_inputs = [tf.ragged.constant(rows, tf.int32) for rows in (first, second)]
    for max_seq_length in (4, 5, 6, 7, 12, 13):
        packer = GraphPacker(VOCAB, max_seq_length)
        kept = packer.fit(*graph_inputs)
        batch = packer.pack(*graph_inputs, kept)
        ids, segments = batch.ragged(batch.ids).to_list(), batch.ragged(batch.segments).to_list()
        for row, (a, b) in enumerate(zip(first, second, strict=True)):
            kept_a, kept_b = packing.fit_segments(a, b or None, max_seq_length)
            expected = packing.join_segments(kept_a, kept_b, 101, 102)
            assert (ids[row], segments[row]) == expected
            assert kept.truncated[row] == (len(kept_a) < len(a) or len(kept_b) < len(b))
        assert tf.reduce_all(batch.visible == 1)
