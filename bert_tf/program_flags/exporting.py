"""The flags for exporting a model."""

from typing import Any

from absl import flags

from bert_tf.program_flags import values
from bert_tf.runtime import files
from bert_tf.serving.export_config import ExportConfig

flags.disclaim_key_flags()


class ExportFlags:
    """Defines the flags for exporting a model."""

    def __init__(self) -> None:
        self._export_dir = flags.DEFINE_string("export_dir", None, "A new folder for the exported model.")
        self._settings = values.SettingsFlags(ExportConfig)

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
        return ExportConfig(**self._settings.given(), **more)
