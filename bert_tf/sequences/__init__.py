"""Turns tokens into the sequences that the model reads: truncated, joined, masked, and stored as records.

    packing, graph_packing    [CLS] A [SEP] B [SEP] and truncation: rules, lists and NumPy batches; tensors
    long_documents            what is read of longer texts; windows
    masking, graph_masking    masked-LM rules, NumPy batches and the release's order; tensors
    random_streams            random numbers that don't depend on how work is divided
    example_format            features of the records, sidecars of the shards

May import `runtime` and `tokenization`. Each rule is stated once, and one table of cases tests all its executions. Only
the `graph_*` modules need TensorFlow.
"""
