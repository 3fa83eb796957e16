"""Griffe extension: shows settings without `Annotated` and `about`. The text of `about` becomes the description."""

import ast
from typing import Any

from griffe import Attribute, Docstring, Extension


class SettingsExtension(Extension):
    """Simplifies annotated attributes."""

    def on_attribute_instance(self, *, node: Any, attr: Attribute, **_: Any) -> None:
        """Replaces `Annotated[TYPE, about("TEXT")]` by TYPE. Without a docstring, TEXT becomes the description."""
        annotation = getattr(node, "annotation", None)
        is_annotated = isinstance(annotation, ast.Subscript) and getattr(annotation.value, "id", "") == "Annotated"
        if not is_annotated:
            return
        for call in (part for part in annotation.slice.elts[1:] if isinstance(part, ast.Call)):
            if getattr(call.func, "id", "") == "about" and call.args and attr.docstring is None:
                text = ast.literal_eval(call.args[0]) if isinstance(call.args[0], ast.Constant) else ""
                attr.docstring = Docstring(text, parent=attr) if text else None
        attr.annotation = attr.annotation.slice.elements[0]
