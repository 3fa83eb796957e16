"""A pre-training run in a folder: which data, in which phases, with which model; checked before anything runs."""

import dataclasses
import functools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from bert_tf.checkpoints import run_directory
from bert_tf.config import BertConfig
from bert_tf.pretraining import input_pipeline, record_shards
from bert_tf.pretraining.data import ExampleFinder, ExampleSet, PretrainingData
from bert_tf.pretraining.model import PretrainingModel
from bert_tf.runtime import distribution
from bert_tf.runtime.distribution import DistributionConfig
from bert_tf.runtime.files import InputError
from bert_tf.runtime.program import say
from bert_tf.training import loop, resume
from bert_tf.training.contract import DTYPES, PeriodicEvaluation, TrainingConfig, TrainingData
from bert_tf.training.evaluation import BatchEvaluator


@dataclasses.dataclass(frozen=True)
class Phase:
    """The steps [start, end) that read one kind of data; the paper trains 90% of them on short sequences.

    Attributes:
      start: first step.
      end: step after the last.
      examples: the data.
    """

    start: int
    end: int
    examples: ExampleSet


class PretrainingRun:
    """A pre-training run: checks everything first, then trains and evaluates.

    Args:
      config: of the encoder.
      objective: see `PretrainingModel`.
      data: what is trained on, phase after phase.
      phase_ends: at which step each phase ends; the last one at the end of training.
      training_config: how to train, and the folder.
      distribution_config: where to run.
      vocab_file: what the data was made with; "" if it isn't known.
      init_checkpoint: where to start if the folder holds no checkpoint of the run.

    Raises:
      InputError: if the data, the vocabulary, the config and the flags don't fit together.
    """

    def __init__(
        self,
        config: BertConfig,
        objective: str,
        data: Sequence[PretrainingData],
        phase_ends: Sequence[int],
        training_config: TrainingConfig,
        distribution_config: DistributionConfig,
        vocab_file: str = "",
        init_checkpoint: str | None = None,
    ) -> None:
        self._finder = ExampleFinder(config, objective, vocab_file, training_config.seed)
        resume.require_starting_point(training_config.output_dir, init_checkpoint)
        # Before anything else of TensorFlow's is used: workers must find each other first.
        self.strategy = distribution.build_strategy(distribution_config)
        self.config = config
        self.objective = objective
        self.vocab_file = vocab_file
        self.training_config = training_config
        self.init_checkpoint = init_checkpoint
        starts = [0, *phase_ends[:-1]]
        self.phases = [
            Phase(start, end, self._finder.find(part))
            for start, end, part in zip(starts, phase_ends, data, strict=True)
        ]
        training_config.check_batch(self.strategy)

    @functools.cached_property
    def model(self) -> PretrainingModel:
        """Built in the strategy's scope when it is first needed, with initial values from the seed."""
        keras.utils.set_random_seed(self.training_config.seed)
        with self.strategy.scope():
            return PretrainingModel(
                self.config,
                self.objective,
                use_one_hot_embeddings=distribution.is_tpu(self.strategy),
                recompute_gradients=self.training_config.recompute_gradients,
                dtype=DTYPES[self.training_config.dtype],
            )

    @functools.cached_property
    def evaluator(self) -> BatchEvaluator:
        """Compiled once, for all evaluations of the run."""
        return BatchEvaluator(self.model, self.strategy)

    def record(self, flags: Mapping[str, Any], allow_changes: bool = False) -> None:
        """Writes down what the run is made of; refuses a folder whose run began with something else."""
        if not distribution.is_chief(self.strategy):
            return
        how = self.training_config
        run_directory.prepare(
            how.output_dir,
            self.config,
            self.vocab_file,
            flags,
            resume_settings={
                "objective": self.objective,
                "init_checkpoint": self.init_checkpoint,
                "phases": [
                    {
                        "steps": [phase.start, phase.end],
                        "records": {shard.path: shard.records for shard in phase.examples.shards},
                        "contents": record_shards.fingerprints(phase.examples.shards),
                        "lengths": {feature.name: feature.length for feature in phase.examples.features},
                        **({"masking": phase.examples.masker.settings()} if phase.examples.masker else {}),
                    }
                    for phase in self.phases
                ],
                **how.resume_settings(),
            },
            allow_changes=allow_changes,
        )

    def train(self, evaluation: PeriodicEvaluation | None = None) -> dict[str, float]:
        """Trains to the last step, from the run's newest checkpoint if there is one; see `training.train`."""
        how = self.training_config
        for phase in self.phases:
            examples = phase.examples
            say(
                f"Steps {phase.start} to {phase.end}: sequences of {examples.features[0].length} from "
                f"{examples.records} examples in {len(examples.shards)} files."
            )

        def from_step(step: int, context: tf.distribute.InputContext) -> tf.data.Dataset:
            phase = self._phase(step)
            return input_pipeline.training_batches(
                phase.examples.shards,
                phase.examples.features,
                how.train_batch_size,
                how.seed,
                step - phase.start,
                context,
                phase.examples.masker,
            )

        def describe(step: int, shards_of: Callable[..., list[str]]) -> str:
            phase = self._phase(step)
            paths = shards_of(phase.examples.shards, how.train_batch_size, how.seed, step - phase.start)
            return ", ".join(os.path.basename(path) for path in paths)

        data = TrainingData(
            from_step,
            tuple(phase.end for phase in self.phases[:-1]),
            describe=functools.partial(describe, shards_of=input_pipeline.shards_of_step),
            describe_reading=functools.partial(describe, shards_of=input_pipeline.shards_of_window),
        )
        return loop.train(self.model, how, self.strategy, data, self.init_checkpoint, evaluation)

    def _phase(self, step: int) -> Phase:
        return next(phase for phase in self.phases if step < phase.end)

    def held_out_evaluation(
        self, data: PretrainingData, batch_size: int, max_steps: int, every: int
    ) -> PeriodicEvaluation:
        """Evaluates on other data while training goes on: whole batches, once through at the most.

        Args:
          data: the held-out examples.
          batch_size: examples in a batch.
          max_steps: most batches of an evaluation.
          every: steps between evaluations.
        """
        held_out = self._finder.find(data)
        distribution.per_replica_batch_size(batch_size, self.strategy, "--eval_batch_size")
        batches = held_out.records // batch_size
        if batches < 1:
            raise InputError(
                f"{data.flag_name}: {data.input_file} has fewer examples than --eval_batch_size={batch_size}."
            )
        steps = min(max_steps, batches)

        def evaluate(step: int) -> dict[str, float]:
            means = self._evaluate(held_out, batch_size, steps)
            return means | {"perplexity": math.exp(min(means["masked_lm_loss"], 700.0))}

        return PeriodicEvaluation(evaluate, every)

    def evaluate(self, batch_size: int, steps: int) -> dict[str, float]:
        """The release's evaluation: metrics over `steps` batches, going over a short file again.

        Returns:
          global_step, loss (the mean over batches), and the means of the model's metrics.
        """
        step = resume.restore_for_evaluation(self.model, self.training_config.output_dir, self.init_checkpoint)
        return {"global_step": step, **self._evaluate(self.phases[-1].examples, batch_size, steps)}

    def _evaluate(self, examples: ExampleSet, batch_size: int, steps: int) -> dict[str, float]:
        distribution.per_replica_batch_size(batch_size, self.strategy, "--eval_batch_size")
        return self.evaluator.evaluate(
            lambda context: input_pipeline.evaluation_batches(
                examples.shards, examples.features, batch_size, context, examples.masker
            ),
            steps,
        )
