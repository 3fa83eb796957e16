"""From tokens to records and shards.

    instances         documents become pairs of segments with a next-sentence label
    records           planned examples become TFRecords; the files of a set
    original_order   both in the original's order, with its random draws

May import `bert_tf.sequences` and the folder `corpus`.
"""
