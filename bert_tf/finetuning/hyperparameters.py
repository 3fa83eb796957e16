"""The hyperparameters that the paper varies when it fine-tunes, as values."""

import dataclasses
import itertools
from collections.abc import Sequence

from bert_tf.config import BertConfig
from bert_tf.runtime.files import InputError
from bert_tf.training.contract import TrainingConfig


def count_steps(
    num_examples: int, train_batch_size: int, num_train_epochs: float, warmup_proportion: float
) -> tuple[int, int]:
    """Training and warm-up steps, as the release counts them.

    Raises:
      InputError: if there is not one whole batch, or no batch has that size.
    """
    if train_batch_size < 1:
        raise InputError(f"a training batch of {train_batch_size} examples is asked for, but at least 1 is expected.")
    steps = int(num_examples / train_batch_size * num_train_epochs)
    if steps < 1:
        raise InputError(
            f"{num_examples} training examples make no step with --train_batch_size={train_batch_size} and "
            f"--num_train_epochs={num_train_epochs}. Use a smaller batch or more epochs."
        )
    return steps, int(steps * warmup_proportion)


@dataclasses.dataclass(frozen=True)
class Hyperparameters:
    """What the paper chooses by the dev set (appendix A.3), and the seed.

    Attributes:
      train_batch_size: examples in a step.
      learning_rate: the peak.
      num_train_epochs: how often the training set is gone through. On small sets many more than the paper's 2 to 4
        make training more stable (Mosbach et al., 2021, recommend 20, with bias correction).
      seed: of the output layer, the order of the data, and dropout.
    """

    train_batch_size: int
    learning_rate: float
    num_train_epochs: float
    seed: int

    @property
    def name(self) -> str:
        """A name for files and tables."""
        return f"batch{self.train_batch_size}_lr{self.learning_rate:g}_epochs{self.num_train_epochs:g}_seed{self.seed}"

    def applied_to(
        self, config: TrainingConfig, output_dir: str, num_examples: int, warmup_proportion: float
    ) -> TrainingConfig:
        """A training config with these values and their number of steps.

        Raises:
          InputError: if there is not one whole batch.
        """
        steps, warmup_steps = count_steps(num_examples, self.train_batch_size, self.num_train_epochs, warmup_proportion)
        optimizer = dataclasses.replace(
            config.optimizer,
            learning_rate=self.learning_rate,
            num_train_steps=steps,
            num_warmup_steps=warmup_steps,
        )
        return dataclasses.replace(
            config,
            output_dir=output_dir,
            optimizer=optimizer,
            train_batch_size=self.train_batch_size,
            seed=self.seed,
        )


def fresh_top_layers(config: BertConfig, count: int) -> str:
    """A pattern of the variables to start afresh when the top layers are: the last blocks', and the pooler's.

    The top layers are the most specific to pre-training, and letting go of them helps on small data sets (Zhang et
    al., 2021, "Revisiting Few-sample BERT Fine-tuning").

    Args:
      config: of the encoder.
      count: how many blocks; 0 for none, and the pooler stays too.

    Raises:
      InputError: if there are not that many.
    """
    if not 0 <= count <= config.num_hidden_layers:
        raise InputError(f"--reinit_layers is {count}, but the model has {config.num_hidden_layers} layers.")
    blocks = range(config.num_hidden_layers - count, config.num_hidden_layers)
    return "|".join(["bert/pooler/.*", *(f"bert/encoder/layer_{i}/.*" for i in blocks)]) if count else ""


def hyperparameter_grid(
    batch_sizes: Sequence[int], learning_rates: Sequence[float], epochs: Sequence[float], seeds: Sequence[int]
) -> list[Hyperparameters]:
    """All combinations, each once; those that differ by their seed alone next to one another."""
    combinations = itertools.product(batch_sizes, learning_rates, epochs, seeds)
    return list(dict.fromkeys(Hyperparameters(*values) for values in combinations))
