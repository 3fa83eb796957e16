"""Pre-training from Python."""

import os
from typing import Any, Self

from bert_tf.api.arguments import applied
from bert_tf.api.run_folder import RunFolder
from bert_tf.checkpoints import pretrained
from bert_tf.config import BertConfig, ModelFiles
from bert_tf.distribution.devices import DistributionConfig
from bert_tf.pretraining.pretraining_config import HeldOutConfig, PretrainingConfig, PretrainingData
from bert_tf.pretraining.run import pretrain
from bert_tf.runtime.errors import InputError, require_path
from bert_tf.tokenization.vocabulary import check_vocab_file, load_vocab
from bert_tf.training.settings import TrainingConfig


class Pretrainer(RunFolder):
    """Pre-trains an encoder: masked LM and next sentence prediction, or one of the paper's ablations.

    It runs the code of `run_pretraining.py`: the same data, settings and seed produce the same weights.

        pretrainer = bert_tf.Pretrainer("tiny", "vocab.txt")
        pretrainer.fit("corpus.tfrecord", num_train_steps=1000)
        pretrainer.save("models/mine")
        classifier = bert_tf.Classifier.from_pretrained("models/mine")

    Args:
      config: the encoder's config, or the name of a released size (see `BertConfig.named`).
      vocab_file: the vocabulary that the data was made with.
      output_dir: the run directory; None for a temporary one. `fit` resumes an interrupted run in it.
      objective: "mlm_nsp", "mlm" or "ltr"; see `bert_tf.pretraining.model.PretrainingModel`.
      init_checkpoint: a model to start from; see `from_pretrained`.
      dtype: "float32", "bfloat16" or "float16": the type of matrix multiplications.
      distribution_strategy: "one_device", "mirrored" or "tpu".
      tpu_name: the name of the TPU, with "tpu"; "local" on a TPU VM.

    Raises:
      InputError: if there is no such size, or the vocabulary can't be used.
    """

    def __init__(
        self,
        config: BertConfig | str,
        vocab_file: str | os.PathLike[str],
        *,
        output_dir: str | os.PathLike[str] | None = None,
        objective: str = "mlm_nsp",
        init_checkpoint: str | os.PathLike[str] | None = None,
        dtype: str = "float32",
        distribution_strategy: str = "one_device",
        tpu_name: str = "",
    ) -> None:
        super().__init__(output_dir, init_checkpoint)
        self._objective = objective
        self._training = applied(TrainingConfig(), {"dtype": dtype}, "Pretrainer")
        devices = {"distribution_strategy": distribution_strategy, "tpu_name": tpu_name}
        self._distribution = applied(DistributionConfig(), devices, "Pretrainer")
        self.vocab_file = require_path("vocab_file", vocab_file)
        check_vocab_file(self.vocab_file)
        size = len(load_vocab(self.vocab_file))
        self.config = BertConfig.named(config, vocab_size=size) if isinstance(config, str) else config

    def __repr__(self) -> str:
        return f"Pretrainer(hidden_size={self.config.hidden_size}, vocab_file={self.vocab_file!r})"

    @classmethod
    def from_pretrained(cls, path: str | os.PathLike[str], **options: Any) -> Self:
        """Returns a pre-trainer that continues from a model, for example on text of another domain.

        Args:
          path: the model, as for `bert_tf.load_model`.
          options: arguments of the class.

        Raises:
          InputError: if a file is missing, or the files do not match each other.
        """
        checkpoint, config, tokenizer = pretrained.find_model(path, "from_pretrained()")
        tokenizer = pretrained.required_tokenizer(tokenizer, checkpoint, "from_pretrained()")
        return cls(config, tokenizer.vocab_file, init_checkpoint=path, **options)

    def fit(
        self,
        records: str | os.PathLike[str],
        *,
        num_train_steps: int | None = None,
        epochs: float | None = None,
        max_seq_length: int = 128,
        max_predictions_per_seq: int = 20,
        validation_data: str | os.PathLike[str] | None = None,
        evaluate_every: int = 1000,
        use_best_checkpoint: bool = False,
        warmup_proportion: float = 0.1,
        allow_changed_settings: bool = False,
        verbose: int = 1,
        callbacks: Any = None,
        **settings: Any,
    ) -> dict[str, float]:
        """Trains the encoder. See `RunFolder` for further calls.

        Args:
          records: TFRecord files made by `data_prep`: names and glob patterns, separated by commas.
          num_train_steps: the step at which training ends.
          epochs: number of passes over the records, instead of `num_train_steps`.
          max_seq_length: length of the sequences in tokens, as in the data.
          max_predictions_per_seq: masked positions per sequence, as in the data.
          validation_data: TFRecord files to evaluate on.
          evaluate_every: number of steps between two evaluations. There is always one at the end.
          use_best_checkpoint: if True, use the weights with the lowest validation loss.
          warmup_proportion: the fraction of the steps, in [0, 1], during which the learning rate rises.
          allow_changed_settings: if True, resume an interrupted run even if its settings have changed.
          verbose: see `Estimator.fit`.
          callbacks: see `Estimator.fit`. An epoch of the callbacks has `evaluate_every` steps.
          settings: `batch_size` (default 32), and fields of `bert_tf.training.settings.TrainingConfig` and of
            `bert_tf.optimization.OptimizerConfig`: `learning_rate` (5e-5), `seed`, `weight_decay_rate` and more.

        Returns:
          The mean metrics of the last training steps. `history` has the metrics of all steps and the evaluations.

        Raises:
          InputError: if the data can't be used, or the folder contains a run with other data or settings.
          KeyboardInterrupt: after Ctrl-C, once the state has been saved.
          TypeError: if there is no such argument.
        """
        config = applied(self._training, settings, "Pretrainer.fit()", ("output_dir", "dtype"))
        if (num_train_steps is None) == (epochs is None):
            raise InputError("fit() takes either num_train_steps or epochs. Pass one of them.", "epochs")
        end = {"num_train_steps": num_train_steps} if epochs is None else {"epochs": epochs}
        if use_best_checkpoint and validation_data is None:
            raise InputError("use_best_checkpoint needs validation_data. Pass it to fit.", "use_best_checkpoint")
        with self._next_run(verbose, callbacks) as (folder, checked):
            run = PretrainingConfig(
                data=PretrainingData(os.fspath(records), max_seq_length, max_predictions_per_seq),
                model=ModelFiles(self._start),
                objective=self._objective,
                allow_changed_settings=allow_changed_settings,
                do_train=True,
                held_out=HeldOutConfig(
                    validation_data and os.fspath(validation_data),
                    steps=evaluate_every,
                    batch_size=config.train_batch_size,
                    use_best_checkpoint=use_best_checkpoint,
                ),
                training=config.replace(output_dir=folder),
                distribution=self._distribution,
            )
            run = applied(run, {**end, "warmup_proportion": warmup_proportion}, "Pretrainer.fit()")
            return pretrain(run, self.config, self.vocab_file, checked)[1]
