"""From tokens to records and shards.

    instances         documents become pairs of segments with a next-sentence label
    records           planned examples become TFRecords
    reference_order   both in the release's order, with its random draws
    shards            paths, sidecars and assembly of the output

May import `bert_tf.sequences` and the folder `corpus`.
"""
