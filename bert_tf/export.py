"""Exports a finished run, or a pre-trained model, as a SavedModel that takes raw strings; and loads one.

    python -m bert_tf.export --model_dir=runs/qnli --export_dir=exported/qnli

The tokenizer, the vocabulary and the labels are inside: to serve it, only tensorflow and tensorflow-text are needed.
What it can be asked is said by the `signatures` of what its task serves (`tasks.served`, `tasks.tagging.served`,
`tasks.squad.served`), or of `serving.pretrained_encoder` for a pre-trained model.
"""

import os

from absl import flags

from bert_tf import program_flags
from bert_tf.checkpoints import run_directory
from bert_tf.runtime import files, program
from bert_tf.runtime.files import InputError
from bert_tf.runtime.program import say
from bert_tf.serving import portable_models, pretrained_encoder, saved_model
from bert_tf.serving.finished_run import Exportable, FinishedRun
from bert_tf.serving.saved_model import ExportConfig, ExportedModel, load
from bert_tf.tasks import table

__all__ = ["ExportConfig", "ExportedModel", "build", "export_run", "load"]


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
    if "task" in run_directory.recorded(run_directory.folder_of_model(model_dir)):
        return table.exportable(FinishedRun.read(model_dir, config))
    return pretrained_encoder.exportable(model_dir, config)


def cli() -> None:
    """The program. Its flags are defined here, because whoever imports `load` may have flags of the same names."""
    model_dir = flags.DEFINE_string("model_dir", None, "A run's folder, or any that holds a pre-trained model.")
    max_seq_length = flags.DEFINE_integer(
        "max_seq_length", None, "Longer sequences are cut; by default as in training, or what the model can take."
    )
    null_threshold = flags.DEFINE_float(
        "null_score_diff_threshold", None, "SQuAD 2.0: there is no answer where its odds are above this."
    )
    export_flags = program_flags.ExportFlags()

    def main() -> None:
        config = export_flags.config(
            max_seq_length=max_seq_length.value, null_score_diff_threshold=null_threshold.value
        )
        export_run(model_dir.value, export_flags.export_dir, config)

    program.run(main, required=["model_dir", "export_dir"])


if __name__ == "__main__":
    cli()
