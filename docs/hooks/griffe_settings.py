"""Griffe extension for settings and inherited docstrings.

Settings are shown without `Annotated` and `about`. The text of `about` becomes the description.
A method without a docstring, such as a signature for type checkers, gets the docstring of the method that it overrides.
"""

import ast
from typing import Any

from griffe import AliasResolutionError, Attribute, Class, Docstring, Extension, Module


class SettingsExtension(Extension):
    """Simplifies annotated attributes, and adds inherited docstrings."""

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        """Adds inherited docstrings to the methods of all classes of a package."""
        for member in pkg.members.values():
            if member.is_alias:  # an import
                continue
            if member.is_module:
                self.on_package(pkg=member)
            elif member.is_class:
                _inherit(member)

    def on_attribute_instance(self, *, node: Any, attr: Attribute, **_: Any) -> None:
        """Replaces `Annotated[TYPE, about("TEXT")]` by TYPE. Without a docstring, TEXT becomes the description."""
        annotation = getattr(node, "annotation", None)
        is_annotated = isinstance(annotation, ast.Subscript) and getattr(annotation.value, "id", "") == "Annotated"
        if not is_annotated:
            return
        for call in (item for item in annotation.slice.elts[1:] if isinstance(item, ast.Call)):
            if getattr(call.func, "id", "") == "about" and call.args and attr.docstring is None:
                text = ast.literal_eval(call.args[0]) if isinstance(call.args[0], ast.Constant) else ""
                attr.docstring = Docstring(text, parent=attr) if text else None
        attr.annotation = attr.annotation.slice.elements[0]


def _inherit(child: Class) -> None:
    try:
        parents = child.mro()
    except (ValueError, AliasResolutionError):  # a base class outside the package
        return
    for name, method in child.members.items():
        if not method.is_alias and method.is_function and method.docstring is None:
            method.docstring = next((p.members[name].docstring for p in parents if name in p.members), None)
