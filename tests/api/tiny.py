"""Small data sets, and settings with which a tiny model learns them."""

GOOD, BAD = ("a fine day", "fine words here"), ("a poor day", "poor words here")
TEXTS = [*GOOD, *BAD] * 6
LABELS = ["pos", "pos", "neg", "neg"] * 6
FIT = {"epochs": 2, "batch_size": 8, "learning_rate": 1e-3}
# Enough for the tiny model to distinguish the two classes of texts.
LEARN = {"epochs": 20, "batch_size": 8, "learning_rate": 5e-3, "evaluate_every": "end"}
