"""Defines the flags of the programs from settings.

The original flags keep their names and defaults. Only programs import this module. It does not import TensorFlow, so
--help and errors in flags are fast.
"""

from collections.abc import Collection
from typing import Any, Generic, Literal, TypeVar, get_args, get_origin

from absl import flags

from bert_tf.config import RELEASED_SIZES, BertConfig
from bert_tf.runtime import path_checks, program, settings
from bert_tf.runtime.errors import InputError, check
from bert_tf.serving.export_config import ExportConfig
from bert_tf.text.vocabulary import load_vocab

flags.disclaim_key_flags()

_DEFINE = {bool: flags.DEFINE_bool, int: flags.DEFINE_integer, float: flags.DEFINE_float}
_Settings = TypeVar("_Settings", bound=settings.Settings)


class SettingsFlags(Generic[_Settings]):
    """Defines a flag for each setting that has a description, including nested settings.

    Args:
      kind: the class of the settings.
      program_name: the module of the program; required if the program does not have all flags of the class.
      only: names of the settings that are flags of the program; by default all.
      **defaults: defaults of the flags, by names of settings, if they differ from the defaults of the settings.
    """

    def __init__(
        self, kind: type[_Settings], program_name: str = "", only: Collection[str] = (), **defaults: Any
    ) -> None:
        self._kind, group = kind, ""
        self._flags: dict[str, flags.FlagHolder] = {}
        for name, field in settings.flags_of(kind, program=program_name).items():
            if only and field.name not in only:
                continue
            if field.group not in ("", group):
                group = field.group
                program.section(group)
            self._flags[name] = _define(field, defaults.get(field.name, field.default))

    @property
    def are_present(self) -> bool:
        """Whether the command line contains at least one of the flags."""
        return any(flag.present for flag in self._flags.values())

    def given(self) -> dict[str, Any]:
        """Returns the values of the flags by name. The command line must have been parsed."""
        values = {name: flag.value for name, flag in self._flags.items()}
        kinds = settings.flags_of(self._kind)
        for name, value in values.items():
            if isinstance(value, list):  # the items of a list flag are strings
                values[name] = check(value, kinds[name].type, f"--{name}", strict=False)
        return values

    def config(self, **others: Any) -> _Settings:
        """Returns the settings from the flags. The command line must have been parsed.

        Args:
          **others: settings to replace.

        Raises:
          InputError: if a value can't be used.
        """
        return self._kind.from_flags(self.given()).replace(**others)


def _define(field: settings.Field, default: Any) -> flags.FlagHolder:
    kind = field.plain_type
    if field.needs:
        program.needs(field.flag, *field.needs)
    if get_origin(kind) is Literal:
        return flags.DEFINE_enum(field.flag, default, get_args(kind), field.help)
    if get_origin(kind) is tuple:
        return flags.DEFINE_list(field.flag, default and list(map(str, default)), field.help)
    return _DEFINE.get(kind, flags.DEFINE_string)(field.flag, default, field.help)


class ModelSizeFlags:
    """Defines the flags for a model's size, as an alternative to a config file."""

    def __init__(self) -> None:
        self._size = flags.DEFINE_enum(
            "model_size", None, list(RELEASED_SIZES), "Released model size; replaces --bert_config_file."
        )
        self._changes = SettingsFlags(BertConfig, **dict.fromkeys(BertConfig.__struct_fields__))

    def config(self, config_file: str | None, vocab_file: str | None, default_file: str | None = None) -> BertConfig:
        """Returns the config of a config file or of the size flags.

        A config file takes precedence over the size in a recipe. (In the paper, Table 6 varies layers, width and
        heads.)

        Args:
          config_file: the config file given by a flag, or None.
          vocab_file: the vocabulary, required with the size flags.
          default_file: the config file in the directory of the model, used if neither a config nor a size is given.

        Raises:
          InputError: if both a config and a size are given, if neither is given, or if the vocabulary is missing.
        """
        is_given = self._size.present or self._changes.are_present
        if (config_file or default_file) and not is_given:
            return BertConfig.from_json_file(config_file or default_file)
        if config_file or not self._size.value:
            raise InputError("Pass either --bert_config_file or --model_size (with the flags that change it).")
        if not vocab_file:
            raise InputError("--model_size: the vocab_size of the model is unknown. Pass --vocab_file too.")
        changes = {name: value for name, value in self._changes.given().items() if value is not None}
        return BertConfig.named(self._size.value, vocab_size=len(load_vocab(vocab_file)), **changes)


class ExportFlags:
    """Defines the flags for exporting a model.

    Args:
      is_step: whether the export is a step of a training program, which also has a flag to select the step, and a flag
        to check all steps without writing anything.
    """

    def __init__(self, is_step: bool = False) -> None:
        if is_step:
            program.section("What to do")
            flags.DEFINE_bool("dry_run", False, "Check everything and trace a training step. Write nothing.")
            program.section("Export")
            text = "Export a SavedModel, which takes raw strings, to --export_dir."
            self._do_export = flags.DEFINE_bool("do_export", False, text)
            program.needs("export_dir", *ExportConfig.needs)
        self._export_dir = flags.DEFINE_string("export_dir", None, "New directory for the exported model.")
        self._settings = SettingsFlags(ExportConfig)

    @property
    def do_export(self) -> bool:
        """Whether the step is selected."""
        return self._do_export.value

    @property
    def export_dir(self) -> str:
        """The directory of the exported model."""
        return self._export_dir.value

    def config(self, **more: Any) -> ExportConfig:
        """Returns the settings from the flags. The command line must have been parsed.

        Args:
          **more: other settings of `ExportConfig`.

        Raises:
          InputError: if the directory is not given, or exists and is not empty.
        """
        path_checks.check_new_directory(self.export_dir, "--export_dir")
        return self._settings.config(**more)
