"""The training step: the modules that run in each step, in a TensorFlow graph or around it.

trainer         `Trainer`, which runs the steps
micro_batches   the micro-batches of a replica, and sums over them
metric_means    sums metrics on the devices
nonfinite       counts steps with a non-finite loss or gradient
row_packing     places the sequences of a batch in rows
"""
