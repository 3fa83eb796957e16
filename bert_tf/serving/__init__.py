"""Models as SavedModels that take raw text: the encoder in the form that runs fastest, reading of texts, files.

Imports `model`, `tokenization` and `sequences`. What a task serves lies beside the task.
"""
