"""From text files to tokens on the disk.

    lines               the lines of text files, which may be compressed
    parquet             the rows of Parquet files
    files               the files of a corpus, and their division into pieces
    bad_lines           lines that are not plain text
    reader              documents and sentences
    cleaning            which documents are left out
    token_store         the tokenized corpus on the disk
    sorted_runs         sorts more records than fit into the memory
    word_segmentation   words of a user's segmenter, for whole-word masking
    wordpiece_learner   from word counts to a vocabulary

May import `bert_tf.runtime` and `bert_tf.tokenization`.
"""
