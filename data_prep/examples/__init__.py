"""From tokens to records and shards.

    instances         splits documents into pairs of segments with a next-sentence label
    records           converts planned examples to TFRecords; the files of a set
    original_order    does both in the original order, with the original random draws

May import `bert_tf.text` and the directory `corpus`.
"""
