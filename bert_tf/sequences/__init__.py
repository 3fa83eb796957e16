"""Pieces to the sequences that the model reads: packed, masked, and written as records.

Imports `runtime` and `tokenization`. Packing and masking exist for lists, for NumPy batches and inside a graph; each
form is tested by the same table. Only the graph forms need TensorFlow.
"""
