"""Runs the LiteRT model of an export on texts, without TensorFlow. It gives the same answers as the SavedModel."""

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

import numpy as np

from bert_tf.runtime import files, json_files, lazy_imports, parallel
from bert_tf.runtime.errors import InputError
from bert_tf.sequences import packing
from bert_tf.sequences.text_packer import LongDocuments, TextPacker, document_means
from bert_tf.serving import export_config
from bert_tf.serving.answering import CHOICE_INPUTS, Input, Predictor, softmax
from bert_tf.serving.export_config import SEQUENCES_PER_PART
from bert_tf.text import Tokenizer
from bert_tf.text.vocabulary import VOCAB_FILE


class TextSettings(TypedDict):
    """The settings for texts, pairs or choices: how to read them, and how to compute answers from logits.

    Attributes:
      inputs: the names of the one or two texts, or of the prompt and the endings.
      problem: "classification", "multi_label", "regression" or "choice".
      labels: the classes; None for regression and choices.
      max_seq_length: the largest number of tokens in a sequence.
      threshold: in multi-label tasks, the lowest probability of a predicted label.
      min_probability: the lowest confidence of an answer; absent if there is none.
      abstain_label: the answer below `min_probability`.
      long_documents: how to read longer texts; see `LongDocuments`.
      doc_stride: see `LongDocuments`.
    """

    inputs: list[str]
    problem: str
    labels: list[str] | None
    max_seq_length: int
    threshold: NotRequired[float]
    min_probability: NotRequired[float]
    abstain_label: NotRequired[str]
    long_documents: NotRequired[str]
    doc_stride: NotRequired[int]


class LiteModel(Predictor):
    """A LiteRT model, with the tokenizer and the labels.

    For texts, inputs and answers are the same as in `ServedClassifier` and `ServedChooser`
    (`bert_tf.graphs.classifier`). 8-bit weights change the numbers slightly. Several threads may call the model;
    it computes one call at a time.

    Args:
      directory: an export with --export_quantize=int8 or --export_litert. With both, the int8 model is used.
      threads: number of LiteRT threads; None for one per core.

    Raises:
      InputError: if there is no such model, the model is damaged, or LiteRT is not installed.
    """

    def __init__(self, directory: str | os.PathLike[str], threads: int | None = None) -> None:
        interpreter = lazy_imports.require("ai_edge_litert.interpreter", "the engine LiteRT")
        directory = os.fspath(directory)
        names = (export_config.LITE_INT8_FILE, export_config.LITE_FILE, export_config.LITE_TASK_FILE)
        *paths, task_path = (os.path.join(directory, name) for name in names)
        path = next(filter(files.exists, paths), None)
        if path is None or not files.exists(task_path):
            raise InputError(
                f"{directory}: no LiteRT model of texts, pairs or choices ({names[0]} or {names[1]}, and {names[2]}). "
                "Export with --export_quantize=int8 or --export_litert, or use the engine tensorflow."
            )
        self._settings = json_files.read(task_path, "--model", TextSettings)
        tokenizer = Tokenizer.checked(os.path.join(directory, VOCAB_FILE))
        documents = LongDocuments.from_flags(self._settings)
        self._packer = TextPacker(tokenizer, self._settings["max_seq_length"], documents)
        try:
            threads = threads or parallel.available_cores()
            self._run = interpreter.Interpreter(path, num_threads=threads).get_signature_runner()
        except (ValueError, RuntimeError) as error:
            reason = str(error).partition("\n")[0]
            raise InputError(f"{path} can't be loaded ({reason}). Export the model again.") from None
        self._lock = threading.Lock()
        inputs, is_choice = self._settings["inputs"], self._settings["problem"] == "choice"
        fields = {name: Input(str, is_choice and name == CHOICE_INPUTS[1]) for name in inputs}
        super().__init__(fields, () if is_choice else inputs)

    def _answer(self, examples: Sequence[Mapping[str, Any]]) -> list[dict[str, Any] | InputError]:
        texts = [[fields[name] for name in self._settings["inputs"]] for fields in examples]
        if self._settings["problem"] == "choice":
            return self._choices(texts)
        logits, truncated = self._logits(texts)
        return [self._outputs(row) | {"truncated": cut} for row, cut in zip(logits, truncated, strict=True)]

    def _outputs(self, logits: np.ndarray) -> dict[str, Any]:
        """Returns the answer to a text or a pair for its logits [C]."""
        problem, labels = self._settings["problem"], self._settings["labels"]
        if problem == "regression":
            return {"score": float(logits[0])}
        outputs = {"logits": logits.tolist(), "label_names": labels}
        if problem == "multi_label":
            probabilities = 1 / (1 + np.exp(-logits))
            chosen = probabilities >= self._settings.get("threshold", export_config.LABEL_THRESHOLD)
            confidence = np.where(chosen, probabilities, 1 - probabilities).min()
            outputs |= {"probabilities": probabilities.tolist(), "chosen": chosen.tolist()}
        else:
            outputs |= {"probabilities": softmax(logits.tolist()), "label": labels[int(np.argmax(logits))]}
            confidence = max(outputs["probabilities"])
        if "min_probability" not in self._settings:
            return outputs
        outputs["abstained"] = bool(confidence < self._settings["min_probability"])
        if outputs["abstained"]:
            is_binary = problem == "multi_label"
            outputs |= {"chosen": [False] * len(labels)} if is_binary else {"label": self._settings["abstain_label"]}
        return outputs

    def _choices(self, texts: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
        """Returns the answers to prompts with endings. Empty endings are padding and have probability 0."""
        pairs = [(prompt, ending) for prompt, endings in texts for ending in endings if ending]
        scored = zip(*self._logits(pairs), strict=True)
        answers = []
        for _, endings in texts:
            scores, cut = np.full(len(endings), -np.inf, np.float32), [False] * len(endings)
            for i, _ in filter(lambda ending: ending[1], enumerate(endings)):
                (scores[i],), cut[i] = next(scored)
            probabilities = softmax(scores.tolist()) if any(endings) else [0.0] * len(endings)
            choice = int(np.argmax(scores)) if any(endings) else -1
            answers.append({"choice": choice, "probabilities": probabilities, "truncated": cut})
        return answers

    def _logits(self, texts: Sequence[Sequence[str]]) -> tuple[np.ndarray, list[bool]]:
        """Returns logits [B, C] for texts or pairs [B], and whether each was truncated."""
        packed = []
        for strings in texts:
            # As in the SavedModel, lone surrogates are dropped, because they are not valid UTF-8.
            text_a, text_b = (*(string.encode("utf-8", "ignore").decode() for string in strings), None)[:2]
            packed.append(self._packer.pack_document(text_a, text_b))
        if not packed:
            return np.zeros((0, 1), np.float32), []
        rows = [sequence[:2] for sequences in packed for sequence in sequences]
        logits = []
        with self._lock:  # an interpreter has only one buffer for inputs and outputs
            for begin in range(0, len(rows), SEQUENCES_PER_PART):
                batch = packing.pad_all(rows[begin : begin + SEQUENCES_PER_PART])
                logits.append(self._run(**batch)["logits"])
        truncated = [any(is_truncated for *_, is_truncated in sequences) for sequences in packed]
        return document_means(np.concatenate(logits), list(map(len, packed))), truncated
