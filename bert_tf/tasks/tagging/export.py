"""The exportable models of fine-tuned and feature-based taggers."""

from bert_tf import checkpoints
from bert_tf.checkpoints import pretrained
from bert_tf.checkpoints.output_layers import tags_of_types
from bert_tf.config import BiLstmConfig
from bert_tf.finetuning.models import TokenModel
from bert_tf.runtime.program import say
from bert_tf.serving.encoder import InferenceEncoder
from bert_tf.serving.finished_run import Exportable, FinishedRun, plain_logits
from bert_tf.tasks.tagging.feature_tagger import FeatureTagger
from bert_tf.tasks.tagging.served import ServedTagger
from bert_tf.tasks.tagging.served_by_features import ServedFeatureTagger


def exportable(run: FinishedRun) -> Exportable:
    """Returns the exportable model of a tagging run."""
    if "feature_layers" in run.settings:
        return _exportable_by_features(run)
    tags = tags_of_types(run.labels)
    model = TokenModel(run.config, len(tags), **run.encoder_options)
    run.restore(model)
    served = ServedTagger(run.encoder(model), model.head, run.tokenizer, run.labels, run.max_seq_length)
    return run.exportable(served, plain_logits(model), tags)


def _exportable_by_features(run: FinishedRun) -> Exportable:
    run.export_config.check_bilstm()
    settings, layers = run.settings, run.settings["feature_layers"]
    bilstm = BiLstmConfig(units=settings["bilstm_units"])
    tags = tags_of_types(run.labels)
    model = FeatureTagger(run.config, len(layers), len(tags), bilstm, settings["feature_combination"])
    run.restore(model)
    source = f"--model_dir: the tagger in {run.folder} needs the features of its --init_checkpoint"
    encoder, summary = pretrained.restored_encoder(
        run.config, checkpoints.open_checkpoint(settings["encoder"], source), source
    )
    say(str(summary))
    frozen = InferenceEncoder(encoder, run.export_config.dtype)
    served = ServedFeatureTagger(
        frozen, layers, model, run.tokenizer, types=run.labels, max_seq_length=run.max_seq_length
    )
    return run.exportable(served, None, tags)
