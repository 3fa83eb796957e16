"""From text files to tokens on the disk.

    lines               the lines of text files, which may be compressed, and the rows of Parquet files
    files               the files of a corpus, and their division into ranges
    reader              documents and sentences; lines that are not plain text
    tokens              the tokenized corpus on the disk
    word_segmentation   the words of a user's segmenter, for whole-word masking
    word_counts         from text to word counts
    wordpiece_learner   from word counts to a vocabulary

May import `bert_tf.runtime` and `bert_tf.text`.
"""
