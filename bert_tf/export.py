"""Exports a finished run, or a pre-trained model, as a SavedModel that takes raw strings; and loads one.

    python -m bert_tf.export --model_dir=runs/qnli --export_dir=exported/qnli

See `exporting` for what is made of a run, and `saved_model` for what `load` gives.
"""

from absl import flags

from bert_tf import exporting, program_flags
from bert_tf.runtime import program
from bert_tf.serving.saved_model import ExportConfig, ExportedModel, load

__all__ = ["ExportConfig", "ExportedModel", "load"]

if __name__ == "__main__":  # who imports `load` may have flags of the same names
    _MODEL_DIR = flags.DEFINE_string("model_dir", None, "A run's folder, or any that holds a pre-trained model.")
    _MAX_SEQ_LENGTH = flags.DEFINE_integer(
        "max_seq_length", None, "Longer sequences are cut; by default as in training, or what the model can take."
    )
    _NULL_THRESHOLD = flags.DEFINE_float(
        "null_score_diff_threshold", None, "SQuAD 2.0: there is no answer where its odds are above this."
    )
    _EXPORT = program_flags.ExportFlags()

    def main() -> None:
        """Flags to an exported model."""
        settings = {
            "max_seq_length": _MAX_SEQ_LENGTH.value,
            "null_score_diff_threshold": _NULL_THRESHOLD.value,
        }
        exporting.export_run(_MODEL_DIR.value, _EXPORT.export_dir, _EXPORT.config(**settings))

    flags.mark_flags_as_required(["model_dir", "export_dir"])
    program.run(main)
