"""What every program stands on: files, messages and exit codes, processes, progress and results, devices.

Imports nothing of the project but itself; everything else may import it. Only `distribution` needs TensorFlow.
"""
