"""The model card of a converted model: README.md, with metadata for the Hugging Face Hub."""

import os
import re
from collections.abc import Mapping
from typing import Any

from bert_tf.checkpoints import run_directory, run_record
from bert_tf.checkpoints.class_names import CHOICE, ENCODER, HF_CONFIG_FILE, SEQUENCE, SPAN, TOKENS
from bert_tf.checkpoints.download import HUB_NAME
from bert_tf.checkpoints.reading import CheckpointSource
from bert_tf.runtime import __version__, files, json_files
from bert_tf.sentence_vectors import MODULES_FILE
from bert_tf.tasks.task_names import GLUE_TASKS

CARD_FILE = "README.md"
# Maps architectures to the Hub's names of tasks. Other architectures fill in masks.
_NAMES = ("text-classification", "token-classification", "multiple-choice", "question-answering", "feature-extraction")
_PIPELINES = dict(zip((SEQUENCE, TOKENS, CHOICE, SPAN, ENCODER), _NAMES, strict=True))
# The settings of a run in the card.
_SETTINGS = ("optimizer", "learning_rate", "weight_decay_rate", "num_warmup_steps", "num_train_steps")
_SETTINGS += ("train_batch_size", "max_seq_length", "dtype", "seed")
_LICENCE = "Not stated. Check the licences of the data and of the base model, and add `license` to the metadata above."


def write(directory: str, name: str, source: CheckpointSource) -> None:
    """Writes README.md with the task, the data, the scores and the settings of a run, as far as they are recorded.

    If the directory of the source has a README.md, it is copied instead.

    Args:
      directory: the directory of the converted model, with its other files.
      name: the name of the model.
      source: the model before the conversion.
    """
    from huggingface_hub import EvalResult, ModelCardData

    source_directory, path = run_directory.directory_of_checkpoint(source.path), os.path.join(directory, CARD_FILE)
    if files.exists(existing := os.path.join(source_directory, CARD_FILE)):
        files.copy(files.require_file(existing, "--input", may_be_empty=True), path)
        return
    config = json_files.read(os.path.join(directory, HF_CONFIG_FILE), "--output", dict[str, Any])
    architecture = next(iter(config.get("architectures") or ()), ENCODER)
    is_of_sentences = files.exists(os.path.join(directory, MODULES_FILE))
    pipeline = "sentence-similarity" if is_of_sentences else _PIPELINES.get(architecture, "fill-mask")
    run, flags = run_record.recorded(source.path), run_record.recorded_flags(source_directory)
    task, scores = run.get("task") or run.get("objective"), _scores(source_directory, source) if run else {}
    paths = flags.get("train_file") or flags.get("data_dir") or "unknown"
    data = ", ".join(os.path.basename(x.rstrip("/")) for x in ([paths] if isinstance(paths, str) else paths))
    dataset = ("nyu-mll/glue", f"GLUE {task}") if task in GLUE_TASKS else (data, data)
    split = {"dataset_split": "validation"}
    results = [EvalResult(pipeline, *dataset, metric, value, **split) for metric, value in scores.items()]
    metadata = ModelCardData(
        base_model=_hub_name(run.get("init_checkpoint") or ""),
        library_name="sentence-transformers" if is_of_sentences else "transformers",
        pipeline_tag=pipeline,
        tags=["bert", "bert-tf"],
        **({"model_name": name, "eval_results": results} if results else {}),
    )
    sections = {
        "Task": f"{task or pipeline} (`{architecture}`)",
        "Data": f"{dataset[-1]}, {run['num_examples']} training examples" if "num_examples" in run else "",
        "Scores on the dev set": _table(scores),
        "Settings": _table({name: run[name] for name in _SETTINGS if name in run}),
        "Licence": _LICENCE,
    }
    text = "".join(f"\n## {title}\n\n{content}\n" for title, content in sections.items() if content)
    with files.replacing(path) as writer:
        writer.write(f"---\n{metadata.to_yaml().strip()}\n---\n\n# {name}\n\nWritten by bert-tf {__version__}.\n{text}")


def _hub_name(path: str) -> str | None:
    """Returns the name on the Hub of the model at a path; None for other models."""
    cached = re.search(r"models--([^/]+?)--([^/]+)/snapshots/", path)
    name = "/".join(cached.groups()) if cached else path.removeprefix("hf://").partition("@")[0]
    return name if HUB_NAME.fullmatch(name) else None


def _scores(directory: str, source: CheckpointSource) -> dict[str, float]:
    """Returns the scores of a run on the dev set; empty if none are recorded for these weights."""
    path = os.path.join(directory, "eval_results.json")
    if not files.exists(path):
        return {}
    results = json_files.read(path, "--input", dict[str, Any], only_finite=False)
    step = int(source.read("global_step"))
    if results.get("global_step") != step and not results.get("model", "").startswith(f"step {step} ("):
        return {}
    scores = {name.removeprefix("eval_"): results[name] for name in results if re.match("eval_|exact|f1", name)}
    return {name: value for name, value in scores.items() if json_files.is_number(value)}


def _table(values: Mapping[str, Any]) -> str:
    rows = [f"| {name} | {value} |" for name, value in values.items()]
    return "\n".join(["| Name | Value |", "|---|---|", *rows]) if rows else ""
