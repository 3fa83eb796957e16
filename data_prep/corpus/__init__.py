"""From text files to tokens on the disk.

    files               the files of a corpus, their division into pieces, and their lines
    reader              documents and sentences; lines that are not plain text
    token_store         the tokenized corpus on the disk
    word_segmentation   words of a user's segmenter, for whole-word masking
    wordpiece_learner   from word counts to a vocabulary

May import `bert_tf.runtime` and `bert_tf.tokenization`.
"""
