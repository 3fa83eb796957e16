"""From tokens to records and shards.

    instances         splits documents into pairs of segments with a next-sentence label
    records           converts planned examples to TFRecords, and publishes the shards
    original_order    does both steps in the original order, with the original random draws

May import `bert_tf.text` and `data_prep.corpus`.
"""
