"""The tasks of the paper, and your own: rows, rules, scores, files of predictions, and what is served.

Imports `finetuning` and `serving`. `table` says which name stands for which task; tasks don't import one another.
"""
