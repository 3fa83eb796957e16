"""The hyperparameters that the paper varies when it fine-tunes."""

import itertools
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from bert_tf.checkpoints.output_layers import HEAD_VARIABLES
from bert_tf.config import BertConfig
from bert_tf.runtime.errors import InputError, check, require_whole
from bert_tf.runtime.settings import FiniteAboveZero, FiniteFromZero, Settings, about
from bert_tf.training.settings import TrainingConfig


def count_steps(
    num_examples: int,
    train_batch_size: int,
    num_train_epochs: float,
    warmup_proportion: float,
    num_train_steps: int = 0,
) -> tuple[int, int]:
    """Returns the numbers of training and warm-up steps, as the release counts them.

    Args:
      num_examples: the size of the training set.
      train_batch_size: examples in a step.
      num_train_epochs: passes over the training set.
      warmup_proportion: the share of the steps in which the learning rate rises.
      num_train_steps: if it isn't 0, the number of training steps, whatever the epochs say.

    Raises:
      InputError: if there is less than one step, or an argument is out of its range.
    """
    require_whole("--train_batch_size", train_batch_size, 1)
    require_whole("--num_train_steps", num_train_steps, 0)
    check(num_train_epochs, float, "--num_train_epochs")
    check(warmup_proportion, Annotated[float, Meta(ge=0, le=1)], "--warmup_proportion")
    steps = num_train_steps or int(num_examples / train_batch_size * num_train_epochs)
    if steps < 1:
        raise InputError(
            f"--num_train_epochs={num_train_epochs} of {num_examples} examples with --train_batch_size="
            f"{train_batch_size} are less than one step. Use a smaller batch or more epochs."
        )
    return steps, int(steps * warmup_proportion)


class Hyperparameters(Settings, frozen=True):
    """The values that the paper chooses on the dev set (appendix A.3), and the seed.

    Attributes:
      train_batch_size: the number of examples in a step.
      learning_rate: the peak learning rate.
      num_train_epochs: the number of passes over the training set. On small sets, many more than the paper's 2 to 4
        epochs make training more stable (Mosbach et al., 2021, recommend 20, with bias correction).
      seed: the seed of the output layer, the order of the data, and dropout.
    """

    train_batch_size: Annotated[int, about(ge=1)]
    learning_rate: FiniteAboveZero
    num_train_epochs: FiniteFromZero
    seed: Annotated[int, about(ge=0, flag="random_seed")]

    @property
    def name(self) -> str:
        """A name for files and tables."""
        return f"batch{self.train_batch_size}_lr{self.learning_rate:g}_epochs{self.num_train_epochs:g}_seed{self.seed}"

    def applied_to(
        self,
        config: TrainingConfig,
        output_dir: str,
        num_examples: int,
        *,
        warmup_proportion: float,
        num_train_steps: int,
    ) -> TrainingConfig:
        """Returns a training config with these values and the number of steps that follows from them (`count_steps`).

        Raises:
          InputError: if there is less than one step.
        """
        steps, warmup_steps = count_steps(
            num_examples, self.train_batch_size, self.num_train_epochs, warmup_proportion, num_train_steps
        )
        optimizer = config.optimizer.replace(
            learning_rate=self.learning_rate,
            num_train_steps=steps,
            num_warmup_steps=warmup_steps,
        )
        return config.replace(
            output_dir=output_dir,
            optimizer=optimizer,
            train_batch_size=self.train_batch_size,
            seed=self.seed,
        )


def fresh_variables(config: BertConfig, reinit_layers: int = 0, reset_head: bool = False) -> str:
    """Returns a pattern that matches the variables which are to be initialised anew; "" if there are none.

    The top layers are the most specific to pre-training, and initialising them anew helps on small data sets (Zhang
    et al., 2021, "Revisiting Few-sample BERT Fine-tuning").

    Args:
      config: the encoder's config.
      reinit_layers: the number of top blocks to initialise anew, with the pooler; with 0 the pooler is kept too.
      reset_head: whether an output layer that was fine-tuned before is initialised anew.

    Raises:
      InputError: if the encoder has fewer blocks.
    """
    layers = config.num_hidden_layers
    require_whole("--reinit_layers", reinit_layers, 0)
    if reinit_layers > layers:
        raise InputError(f"--reinit_layers is {reinit_layers}. Use at most {layers}, the model's layers.")
    patterns = ["bert/pooler/.*"] if reinit_layers else []
    patterns += [f"bert/encoder/layer_{number}/.*" for number in range(layers - reinit_layers, layers)]
    patterns += [HEAD_VARIABLES] if reset_head else []
    return "|".join(patterns)


def hyperparameter_grid(
    batch_sizes: Sequence[int], learning_rates: Sequence[float], epochs: Sequence[float], seeds: Sequence[int]
) -> list[Hyperparameters]:
    """Returns all combinations, each once; those that differ only in the seed are adjacent."""
    combinations = itertools.product(batch_sizes, learning_rates, epochs, seeds)
    return list(dict.fromkeys(Hyperparameters(*values) for values in combinations))
