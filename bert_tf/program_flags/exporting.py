"""The flags for exporting a model."""

from typing import Any

from absl import flags

from bert_tf.runtime import files
from bert_tf.serving import settings
from bert_tf.serving.settings import ExportConfig

flags.disclaim_key_flags()


class ExportFlags:
    """Defines the flags for exporting a model."""

    def __init__(self) -> None:
        self._export_dir = flags.DEFINE_string("export_dir", None, "A new folder for the exported model.")
        self._dtype = flags.DEFINE_enum(
            "export_dtype", "float32", settings.DTYPES, "The type of exported weights and of matrix products."
        )
        self._quantize = flags.DEFINE_enum(
            "export_quantize", "none", settings.QUANTIZATIONS, "int8: write also a LiteRT model with 8-bit weights."
        )
        self._litert = flags.DEFINE_bool("export_litert", False, "Write also a LiteRT model in float32.")
        self._onnx = flags.DEFINE_bool("export_onnx", False, "Write also an ONNX model; needs tf2onnx.")
        self._text = flags.DEFINE_bool(
            "export_text",
            True,
            "The exported model takes raw strings. If not, it takes only ids, and does not need tensorflow-text.",
        )

    @property
    def export_dir(self) -> str:
        """The folder of the exported model."""
        return self._export_dir.value

    def config(self, **more: Any) -> ExportConfig:
        """Returns the values of the flags, which must have been parsed, and other settings of `ExportConfig`.

        Raises:
          InputError: if the folder is not given, or is not new.
        """
        files.check_new_folder(self.export_dir, "--export_dir")
        more["litert"] = self._litert.value
        return ExportConfig(self._dtype.value, self._quantize.value, self._onnx.value, self._text.value, **more)
