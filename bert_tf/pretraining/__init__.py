"""Pre-training: records to batches, the encoder with the heads of an objective, and a run in a folder.

Imports `training` and what is below it.
"""
