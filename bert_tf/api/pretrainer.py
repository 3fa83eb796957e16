"""Pre-training from Python."""

import os
from typing import Any, Self, Unpack

from bert_tf.api.arguments import PathLike, applied
from bert_tf.api.recorded_run import RecordedRun
from bert_tf.api.setting_types import PretrainerFitSettings, PretrainerSettings
from bert_tf.checkpoints import pretrained
from bert_tf.config import BertConfig, ModelFiles
from bert_tf.pretraining.pretraining_config import HeldOutConfig, PretrainingConfig, PretrainingData
from bert_tf.pretraining.run import pretrain
from bert_tf.runtime.errors import InputError, require_path
from bert_tf.runtime.settings import FIT
from bert_tf.text.vocabulary import check_vocab_file, load_vocab


class Pretrainer(RecordedRun):
    """Pre-trains an encoder: masked LM and next sentence prediction, or one of the paper's ablations.

    It runs the code of `run_pretraining.py`: the same data, settings and seed produce the same weights.

    Examples:
      >>> lengths = {"max_seq_length": 16, "max_predictions_per_seq": 3}
      >>> pretrainer = bert_tf.Pretrainer("tiny", "build/quickstart/vocab.txt", objective="mlm")
      >>> metrics = pretrainer.fit("build/quickstart/corpus.tfrecord", num_train_steps=2, verbose=0, **lengths)
      >>> metrics["masked_lm_loss"]
      8.31135082244873
      >>> pretrainer.save("models/mine")
      >>> classifier = bert_tf.Classifier.from_pretrained("models/mine")

    Args:
      config: the encoder's config, or the name of a released size (see `BertConfig.named`).
      vocab_file: the vocabulary that the data was made with.
      output_dir: the run directory; None for a temporary one. `fit` resumes an interrupted run in it.
      init_checkpoint: a model to start from; see `from_pretrained`.
      settings: fields of `bert_tf.pretraining.pretraining_config.PretrainingConfig`, including nested settings:
        `objective` ("mlm_nsp", "mlm" or "ltr"), `dtype` ("float32", "bfloat16" or "float16"), `distribution_strategy`
        ("one_device", "mirrored" or "tpu") and `tpu_name`. Training settings become the defaults of `fit`.

    Raises:
      InputError: if there is no such size, or the vocabulary or a setting can't be used.
      TypeError: if there is no such argument.
    """

    def __init__(
        self,
        config: BertConfig | str,
        vocab_file: PathLike,
        *,
        output_dir: PathLike | None = None,
        init_checkpoint: PathLike | None = None,
        **settings: Unpack[PretrainerSettings],
    ) -> None:
        super().__init__(output_dir, init_checkpoint)
        defaults = PretrainingConfig(data=PretrainingData(""), warmup_proportion=0.1)
        self._settings = applied(defaults, settings, "Pretrainer()")
        self.vocab_file: str = require_path("vocab_file", vocab_file)
        check_vocab_file(self.vocab_file)
        size = len(load_vocab(self.vocab_file))
        self.config: BertConfig = BertConfig.named(config, vocab_size=size) if isinstance(config, str) else config

    def __repr__(self) -> str:
        return f"Pretrainer(hidden_size={self.config.hidden_size}, vocab_file={self.vocab_file!r})"

    @classmethod
    def from_pretrained(
        cls, path: PathLike, *, output_dir: PathLike | None = None, **settings: Unpack[PretrainerSettings]
    ) -> Self:
        """Returns a pre-trainer that continues from a model, for example on text of another domain.

        Args:
          path: the model, as for `bert_tf.load_model`.
          output_dir: see the class.
          settings: see the class.

        Raises:
          InputError: if a file is missing, or the files do not match each other.
        """
        checkpoint, config, tokenizer = pretrained.find_model(path, "from_pretrained()")
        tokenizer = pretrained.required_tokenizer(tokenizer, checkpoint, "from_pretrained()")
        return cls(config, tokenizer.vocab_file, output_dir=output_dir, init_checkpoint=path, **settings)

    def fit(
        self,
        records: PathLike,
        *,
        validation_data: PathLike | None = None,
        evaluate_every: int = 1000,
        verbose: int = 1,
        callbacks: Any = None,
        **settings: Unpack[PretrainerFitSettings],
    ) -> dict[str, float]:
        """Trains the encoder. See `RecordedRun` for further calls.

        Args:
          records: TFRecord files made by `data_prep`: names and glob patterns, separated by commas.
          validation_data: TFRecord files to evaluate on.
          evaluate_every: number of steps between two evaluations. There is always one at the end.
          verbose: see `Estimator.fit`.
          callbacks: see `Estimator.fit`. For callbacks, an epoch has `evaluate_every` steps.
          settings: either `num_train_steps` or `epochs`, and other fields of
            `bert_tf.pretraining.pretraining_config.PretrainingConfig`, including nested settings: `max_seq_length`
            (default 128) and `max_predictions_per_seq` (20), which must match the data; `batch_size` (32),
            `learning_rate` (5e-5), `warmup_proportion` (0.1), `seed`, `weight_decay_rate`, `use_best_checkpoint` (the
            weights with the lowest validation loss), `allow_changed_settings` and more.

        Returns:
          The mean metrics of the last training steps. `history` has the metrics of all steps and the evaluations.

        Raises:
          InputError: if the data can't be used, or the directory contains a run with other data or settings.
          KeyboardInterrupt: after Ctrl-C, once the state has been saved.
          TypeError: if there is no such argument.
        """
        arguments = {name: value for name, value in settings.items() if value is not None}
        if ("num_train_steps" in arguments) == ("epochs" in arguments):
            raise InputError("fit() takes either num_train_steps or epochs. Pass one of them.", "epochs")
        config = self._settings.replace(
            data=self._settings.data.replace(input_file=os.fspath(records)),
            model=ModelFiles(self._start),
            do_train=True,
            held_out=HeldOutConfig(validation_data and os.fspath(validation_data), steps=evaluate_every),
        )
        config = applied(config, arguments, "Pretrainer.fit()", FIT)
        with self._next_run(verbose, callbacks) as (directory, checked):
            training = config.training.replace(output_dir=directory)
            held_out = config.held_out.replace(batch_size=training.train_batch_size)
            config = config.replace(training=training, held_out=held_out)
            return pretrain(config, self.config, self.vocab_file, checked)[1]
