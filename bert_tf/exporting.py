"""A finished run, or a pre-trained model, becomes a SavedModel that takes raw strings.

The tokenizer, the vocabulary and the labels are inside: to serve it, only tensorflow and tensorflow-text are needed.
What it can be asked is said by the `signatures` of `ServedClassifier`, `ServedChooser`, `ServedTagger` (for taggers by
features `ServedFeatureTagger`), `ServedAnswerer` and `ServedEncoder`.
"""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from bert_tf import checkpoints
from bert_tf.checkpoints import pretrained, run_directory, saver
from bert_tf.config import BertConfig
from bert_tf.encoder import BertEncoder
from bert_tf.finetuning import workflow
from bert_tf.finetuning.models import ClassifierModel, SpanModel, TokenModel
from bert_tf.finetuning.trials import TRIALS_FILE, TrialTable
from bert_tf.model.bilstm import BiLstmConfig
from bert_tf.runtime import files
from bert_tf.runtime.files import InputError
from bert_tf.runtime.program import say
from bert_tf.sequences.packing import check_max_seq_length
from bert_tf.serving import portable_models, saved_model
from bert_tf.serving.bilstm import RecurrentEncoder, TextEncoder
from bert_tf.serving.encoder import InferenceEncoder
from bert_tf.serving.portable_models import PlainFunction
from bert_tf.serving.pretrained_encoder import ServedEncoder
from bert_tf.serving.reader import ServedModel, TextReader
from bert_tf.serving.saved_model import ExportConfig
from bert_tf.tasks import multiple_choice
from bert_tf.tasks.glue import DEFINITIONS
from bert_tf.tasks.served import ServedChooser, ServedClassifier
from bert_tf.tasks.squad.answerer import AnswerPlan, choose_null_threshold, describe_model
from bert_tf.tasks.squad.served import AnswerRules, ServedAnswerer
from bert_tf.tasks.squad.task import SquadTask
from bert_tf.tasks.table import TAGGING
from bert_tf.tasks.tagging.feature_tagger import FeatureTagger
from bert_tf.tasks.tagging.served import ServedTagger
from bert_tf.tasks.tagging.served_by_features import ServedFeatureTagger
from bert_tf.tokenization import FullTokenizer, load_tokenizer

Model = ClassifierModel | SpanModel | TokenModel


class Exportable(NamedTuple):
    """A model that can be exported.

    Attributes:
      served: with its signatures.
      plain: what `ids` computes, padded, for runtimes that know TensorFlow's common operations only; None for a model
        with a BiLSTM, which they can't run.
    """

    served: ServedModel
    plain: PlainFunction | None


@dataclasses.dataclass(frozen=True)
class _FinishedRun:
    """A run's folder, as far as exporting needs it.

    Attributes:
      folder: where its checkpoints are.
      decisive: what it was trained with; see `run_directory`.
      causal: whether each token sees only those before it.
      bilstm: sizes of the BiLSTM that was fine-tuned with the encoder; None for none.
      flags: of the program that trained.
      labels: the classes; None for regression.
      config: of the encoder.
      tokenizer: of the model.
      max_seq_length: longest sequence of the exported model.
      export_config: how it is exported.
    """

    folder: str
    decisive: Mapping[str, Any]
    causal: bool
    bilstm: BiLstmConfig | None
    flags: Mapping[str, Any]
    labels: list[str] | None
    config: BertConfig
    tokenizer: FullTokenizer
    max_seq_length: int
    export_config: ExportConfig

    def restore(self, model: Model | FeatureTagger) -> int:
        """Gives a model the weights that the run is judged with, and returns their step."""
        checkpoint = saver.latest_checkpoint(run_directory.judged_folder(self.folder))
        if checkpoint is None:
            raise InputError(f"--model_dir: {self.folder} holds no checkpoint. Train first.")
        source = checkpoints.open_checkpoint(checkpoint, "--model_dir")
        variables = checkpoints.named_variables(model.variables)
        say(str(checkpoints.restore(variables, source, may_be_fresh="", what="--model_dir")))
        return int(source.read("global_step"))

    @property
    def encoder_options(self) -> dict[str, Any]:
        """What models are built with besides the config."""
        return {"causal": self.causal, "bilstm": self.bilstm}

    def encoder(self, model: Model) -> TextEncoder:
        encoder = InferenceEncoder(model.encoder, self.export_config.dtype)
        return encoder if model.bilstm is None else RecurrentEncoder(encoder, model.bilstm)

    def texts(self) -> TextReader:
        return TextReader(self.tokenizer, self.max_seq_length)


def export_run(model_dir: str, export_dir: str, config: ExportConfig | None = None) -> None:
    """Exports a finished run, or any pre-trained model that `bert_tf.load` reads.

    Args:
      model_dir: the folder of the run; of several trials the best is taken.
      export_dir: a folder that doesn't exist yet, or is empty.
      config: how.

    Raises:
      InputError: if one of the folders is not what is expected.
    """
    config = config or ExportConfig()
    saved_model.check_export_dir(export_dir)
    if config.onnx:
        portable_models.import_tf2onnx()
    model = build(model_dir, config)
    with files.replacing_folder(export_dir) as folder:
        signatures = saved_model.write(model.served, folder, config.text)
        if config.quantize == "int8":
            portable_models.write_lite(model.plain, os.path.join(folder, portable_models.LITE_FILE))
        if config.onnx:
            portable_models.write_onnx(model.plain, os.path.join(folder, portable_models.ONNX_FILE))
    say(f"Wrote {export_dir} with the signatures {', '.join(signatures)}.")


def build(model_dir: str, config: ExportConfig) -> Exportable:
    """The model that `export_run` writes."""
    if not files.exists(model_dir):
        raise InputError(f"--model_dir: there is no folder {model_dir!r}. Check the path for a typing error.")
    folder = _folder_of_best_trial(model_dir)
    if "task" not in run_directory.recorded(folder):
        return _build_encoder(model_dir, config)
    run = _read_run(model_dir, folder, config)
    task, by_features = run.decisive["task"], "feature_layers" in run.decisive
    if by_features or run.bilstm is not None:
        config.check_bilstm()
    if by_features:
        return _build_feature_tagger(run)
    if task == SquadTask.name:
        return _build_answerer(run)
    if task == TAGGING:
        return _build_tagger(run)
    return _build_chooser(run) if task in multiple_choice.FILE_NAMES else _build_classifier(run)


def _folder_of_best_trial(model_dir: str) -> str:
    """The folder itself, or where it holds trials, the best one's: the only one that has kept its checkpoints."""
    if not files.exists(os.path.join(model_dir, TRIALS_FILE)) or saver.latest_checkpoint(model_dir):
        return model_dir
    table = TrialTable(model_dir, "")
    folders = [table.folder(row["trial"]) for row in table.rows()]
    kept = [folder for folder in folders if saver.latest_checkpoint(run_directory.judged_folder(folder))]
    if len(kept) != 1:
        raise InputError(
            f"--model_dir: {model_dir} holds trials, of which {len(kept)} have checkpoints, where the best one's are "
            "expected. Finish the trials, or name the folder of one."
        )
    return kept[0]


def _read_run(model_dir: str, folder: str, config: ExportConfig) -> _FinishedRun:
    recorded = run_directory.read(folder)
    decisive = recorded["decisive"]
    bert_config = BertConfig.from_json_file(os.path.join(folder, run_directory.CONFIG_FILE), "--model_dir")
    max_seq_length = config.max_seq_length or decisive["max_seq_length"]
    check_max_seq_length(max_seq_length)
    bert_config.check_sequence_length(max_seq_length)
    return _FinishedRun(
        folder,
        decisive,
        bool(decisive.get("causal")),
        run_directory.recorded_bilstm(folder),
        recorded["flags"],
        decisive.get("labels") or workflow.recorded_labels(model_dir),
        bert_config,
        load_tokenizer(os.path.join(folder, run_directory.VOCAB_FILE), decisive["do_lower_case"]),
        max_seq_length,
        config,
    )


def _build_classifier(run: _FinishedRun) -> Exportable:
    task = run.decisive["task"]
    if task in DEFINITIONS:
        labels, is_pair = DEFINITIONS[task].labels, DEFINITIONS[task].text_b is not None
    else:
        labels, is_pair = run.labels, bool(run.flags.get("text_b_column"))
    problem = run.decisive.get("problem") or ("classification" if labels else "regression")
    model = ClassifierModel(run.config, len(labels) if labels else 1, problem, **run.encoder_options)
    run.restore(model)
    encoder, multi_label = run.encoder(model), problem == "multi_label"
    return Exportable(
        ServedClassifier(encoder, model.head, run.texts(), labels, multi_label, is_pair), plain_logits(model)
    )


def _build_chooser(run: _FinishedRun) -> Exportable:
    model = ClassifierModel(run.config, 1, **run.encoder_options)
    run.restore(model)
    return Exportable(ServedChooser(run.encoder(model), model.head, run.texts()), plain_logits(model))


def _build_tagger(run: _FinishedRun) -> Exportable:
    model = TokenModel(run.config, 2 * len(run.labels) + 1, **run.encoder_options)
    run.restore(model)
    served = ServedTagger(run.encoder(model), model.head, run.tokenizer, run.labels, run.max_seq_length)
    return Exportable(served, plain_logits(model))


def _build_feature_tagger(run: _FinishedRun) -> Exportable:
    settings, layers = run.decisive, run.decisive["feature_layers"]
    bilstm = BiLstmConfig(units=settings["bilstm_units"])
    model = FeatureTagger(run.config, len(layers), 2 * len(run.labels) + 1, bilstm, settings["feature_combination"])
    run.restore(model)
    what = f"--model_dir: {run.folder} reads features of the model that was --init_checkpoint"
    encoder, summary = pretrained.restored_encoder(
        run.config, checkpoints.open_checkpoint(settings["encoder"], what), what
    )
    say(str(summary))
    frozen = InferenceEncoder(encoder, run.export_config.dtype)
    served = ServedFeatureTagger(frozen, layers, model, run.tokenizer, run.labels, run.max_seq_length)
    return Exportable(served, None)


def _build_answerer(run: _FinishedRun) -> Exportable:
    model = SpanModel(run.config, **run.encoder_options)
    step = run.restore(model)
    given = {"max_seq_length": run.max_seq_length, **run.export_config.answers}
    for name in ("doc_stride", "max_query_length", "n_best_size", "max_answer_length"):
        value = run.decisive.get(name, run.flags.get(name))
        if value is not None:
            given.setdefault(name, value)
    if run.decisive["version_2_with_negative"]:
        plan = AnswerPlan(null_score_diff_threshold=run.export_config.null_score_diff_threshold)
        given["null_score_diff_threshold"] = choose_null_threshold(plan, [run.folder], describe_model(step, model))
    rules = AnswerRules(**given)
    return Exportable(ServedAnswerer(run.encoder(model), model.head, run.tokenizer, rules), plain_logits(model))


def plain_logits(model: Model) -> PlainFunction | None:
    """A fine-tuned model's logits, by name, from padded ids; see `Exportable`."""
    if model.bilstm is not None:
        return None

    def logits(input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> dict[str, tf.Tensor]:
        found = model.logits({"input_ids": input_ids, "input_mask": input_mask, "segment_ids": segment_ids})
        if isinstance(found, tuple):
            return dict(zip(("start_logits", "end_logits"), found, strict=True))
        return {"logits": found}

    return logits


def _build_encoder(model_dir: str, config: ExportConfig) -> Exportable:
    loaded = pretrained.load(model_dir)
    if loaded.tokenizer is None:
        raise InputError(f"--model_dir: there is no vocab.txt in {model_dir}; put the model's there.")
    max_seq_length = config.max_seq_length or loaded.config.max_position_embeddings
    check_max_seq_length(max_seq_length)
    loaded.config.check_sequence_length(max_seq_length)
    encoder = InferenceEncoder(loaded.encoder, config.dtype)
    served = ServedEncoder(encoder, loaded.tokenizer, max_seq_length, loaded.masked_lm("--model_dir"))
    return Exportable(served, _states(loaded.encoder))


def _states(encoder: BertEncoder) -> PlainFunction:
    def states(input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> dict[str, tf.Tensor]:
        output = encoder(input_ids, input_mask, segment_ids)
        return {"sequence_output": output.sequence_output, "pooled_output": output.pooled_output}

    return states
