"""Packs tokens into input sequences by the original rules, and sequences into rows of a batch.

    packing, text_packer     [CLS] A [SEP] B [SEP] and truncation, and long texts: rules, lists and NumPy batches
    masking, graph_masking   masked-LM rules, NumPy batches and the original order; tensors
    placement, packed_rows   several sequences in one row of a batch: their positions; the arrays
    random_streams           random numbers that do not depend on how work is divided
    example_format           features of the records, metadata files of the shards

This package and `text` are one layer. Only `graph_masking` needs TensorFlow.
"""
