"""The names of the built-in tasks, for --help and for messages. `registry` maps the names to classes."""

# The tasks of the paper's Table 1, in the same order, for --task_name=all. Table 1 omits WNLI.
TABLE_1_TASKS = ("mnli", "qqp", "qnli", "sst-2", "cola", "sts-b", "mrpc", "rte")
GLUE_TASKS = ("cola", "sst-2", "mrpc", "sts-b", "qqp", "mnli", "qnli", "rte", "wnli")
TEXT, TAGGING, SIMILARITY = "text", "ner", "similarity"
# The names of --task_name. "all" and several GLUE tasks separated by commas are also accepted.
TASK_NAMES = (*GLUE_TASKS, "xnli", "swag", "codah", "multiple_choice", TEXT, TAGGING, SIMILARITY)
ALL = "all"
# The name that run_squad.py records.
SQUAD = "squad"
