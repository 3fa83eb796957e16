"""Converts tokens to the model's input sequences: truncated, joined, masked, and stored as records.

    packing, graph_packing    [CLS] A [SEP] B [SEP] and truncation: rules, lists and NumPy batches; tensors
    long_documents            texts longer than a sequence: both ends, or windows
    masking, graph_masking    masked-LM rules, NumPy batches and the original order; tensors
    placement, packed_rows    several sequences in one row of a batch: their places; the arrays
    random_streams            random numbers that do not depend on how work is divided
    example_format            features of the records, metadata files of the shards

May import `runtime` and `tokenization`. Each rule is implemented once, and one table of cases tests all its users. Only
the `graph_*` modules need TensorFlow.
"""
