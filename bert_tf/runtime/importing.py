"""Packages whose names are imported when they are first used, so that a program which needs few of them starts soon."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def when_used(
    package: str, modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Returns `__getattr__`, `__dir__` and `__all__` of a package that offers names of modules.

    Args:
      package: the package's name.
      modules: module -> the names that the package offers of it.
    """
    homes = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(homes[name]), name)

    return get, lambda: sorted(homes), sorted(homes)
