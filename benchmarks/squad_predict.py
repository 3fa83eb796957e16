"""Measures the time of the parts of a SQuAD prediction, and the gain from padding only to the batch's longest window.

    taskset -c 0,1 python -m benchmarks.squad_predict [--model=DIRECTORY] [--squad_file=dev-v1.1.json] [--questions=N]

The parts of `run_squad.py --do_predict` are load (the questions and the model), featurise, model, and decode (including
writing the files). The model is then run again with every window padded to 384, as in the original code. Each row shows
the elapsed seconds, and the seconds of all processors, which depend less on other load on the machine. Without --model
the encoder has the same size (6 layers, hidden size 384) and random weights, which takes the same time. All 2,080
questions take about 450 processor seconds in total.
"""

import contextlib
import os
import resource
import tempfile
import time
from collections.abc import Iterator

import numpy as np
from absl import app, flags

from benchmarks.common import MINILM, SQUAD_FILE, VOCAB_FILE
from bert_tf import checkpoints
from bert_tf.checkpoints import pretrained
from bert_tf.config import BertConfig
from bert_tf.finetuning.finetuning_config import FinetuningConfig
from bert_tf.finetuning.run import FinetuningRun
from bert_tf.finetuning.task import ModelOutputs
from bert_tf.runtime import reporting
from bert_tf.tasks.squad.decoding import decode
from bert_tf.tasks.squad.rules import SquadConfig
from bert_tf.tasks.squad.squad_task import PREDICT_SPLIT, SquadTask
from bert_tf.tasks.squad.windows import SquadWindows
from bert_tf.text import Tokenizer
from bert_tf.training.settings import TrainingConfig

_SQUAD_FILE = flags.DEFINE_string("squad_file", SQUAD_FILE, "SQuAD file with the questions to answer.")
_VOCAB_FILE = flags.DEFINE_string("vocab_file", VOCAB_FILE, "Vocabulary of an uncased model.")
_MODEL = flags.DEFINE_string("model", None, "Directory of a pre-trained or fine-tuned model with its config.")
_QUESTIONS = flags.DEFINE_integer("questions", 0, "Number of questions to answer; 0 for all.")
_BATCH_SIZE = flags.DEFINE_integer("predict_batch_size", 16, "Windows per batch.")


class Stopwatch:
    """Elapsed seconds and processor seconds of the parts of a run. Processor seconds include child processes."""

    def __init__(self) -> None:
        self.seconds: dict[str, tuple[float, float]] = {}

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Adds the time of the `with` block to a part."""
        clock, processors = time.perf_counter(), processor_seconds()
        yield
        total = self.seconds.get(name, (0.0, 0.0))
        elapsed = time.perf_counter() - clock, processor_seconds() - processors
        self.seconds[name] = total[0] + elapsed[0], total[1] + elapsed[1]


def processor_seconds() -> float:
    """Returns the processor seconds of this process and of its ended child processes."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def make_run(config: BertConfig, pad_to_max_seq_length: bool) -> FinetuningRun:
    """Returns a run that predicts with the original sequence lengths."""
    squad_config = SquadConfig(pad_to_max_seq_length=pad_to_max_seq_length)
    return FinetuningRun(
        SquadTask(squad_config, predict_file=_SQUAD_FILE.value),
        FinetuningConfig(
            max_seq_length=squad_config.max_seq_length,
            training=TrainingConfig(tempfile.gettempdir(), pad_to_max_seq_length=pad_to_max_seq_length),
            num_workers=0,
        ),
        (config, Tokenizer(_VOCAB_FILE.value)),
    )


def load_model(run: FinetuningRun) -> None:
    """Builds the model with the weights of --model, or with reproducible random weights."""
    variables = checkpoints.named_variables(run.model.variables)
    if _MODEL.value:
        checkpoints.restore(variables, checkpoints.open_checkpoint(_MODEL.value, "--model"), flag_name="--model")


def predict(run: FinetuningRun, stopwatch: Stopwatch, directory: str) -> tuple[SquadWindows, ModelOutputs]:
    """Runs all parts, from reading the file to writing the answers."""
    with stopwatch.part("load"):
        examples = run.task.examples(PREDICT_SPLIT)[: _QUESTIONS.value or None]
    with stopwatch.part("featurise"):
        windows = run.data.featurize(examples)
    with stopwatch.part("load"):
        load_model(run)
    with stopwatch.part("model"):
        outputs = run.predict(windows, _BATCH_SIZE.value)
    with stopwatch.part("decode"):
        logits = outputs["start_logits"], outputs["end_logits"]
        predictions = decode(examples, windows, *logits, run.task.config)
        predictions.write(
            os.path.join(directory, "predictions.json"), os.path.join(directory, "nbest_predictions.json")
        )
    return windows, outputs


def largest_difference(windows: SquadWindows, shortened: ModelOutputs, padded: ModelOutputs) -> float:
    """Returns the largest difference between the logits of two runs for the same tokens."""
    is_token = windows.padded(slice(0, len(windows)), shortened["start_logits"].shape[1])[0]
    return max(
        float(np.abs(logits - padded[name][:, : logits.shape[1]])[is_token].max()) for name, logits in shortened.items()
    )


def main(_) -> None:
    """Prints the table and the largest difference of the logits."""
    file = pretrained.find_config(_MODEL.value, "--model") if _MODEL.value else None
    config = BertConfig.from_json_file(file) if file else BertConfig(30522, **MINILM)
    shortened, padded = Stopwatch(), Stopwatch()
    with tempfile.TemporaryDirectory() as directory:
        windows, outputs = predict(make_run(config, pad_to_max_seq_length=False), shortened, directory)
        _, outputs_when_padded = predict(make_run(config, pad_to_max_seq_length=True), padded, directory)
    seconds = shortened.seconds | {"model, padded": padded.seconds["model"]}
    model = seconds["model"]
    rows = [
        {
            "part": part,
            "seconds": clock,
            "of the model's": f"{clock / model[0]:.1%}",
            "processor seconds": processors,
            "of the model's ": f"{processors / model[1]:.1%}",
        }
        for part, (clock, processors) in seconds.items()
    ]
    print(
        f"{len(windows.document_of_example)} questions, {len(windows)} windows of {windows.lengths.mean():.0f} tokens"
    )
    print(reporting.table(rows))
    print(f"largest difference of a logit: {largest_difference(windows, outputs, outputs_when_padded):.1g}")


if __name__ == "__main__":
    app.run(main)
