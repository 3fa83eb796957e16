"""Tagging schemes.

Entities are spans of words with a type. The following schemes can be read and written:

    words   Alex  is  in  Los    Angeles
    iob2    B-PER O   O   B-LOC  I-LOC
    iob1    I-PER O   O   I-LOC  I-LOC     (B- only directly after an entity of the same type)
    bioes   S-PER O   O   B-LOC  E-LOC
    bilou   U-PER O   O   B-LOC  L-LOC
    plain   PER   O   O   LOC    LOC       (or tags that are not entities, such as parts of speech)
"""

import re
from collections.abc import Iterable, Sequence

from seqeval.metrics.sequence_labeling import get_entities

AUTO, PLAIN = "auto", "plain"
# The type, the first word and the last word of an entity.
Entity = tuple[str, int, int]

TAG = re.compile(r"O|[BIESLU]-.+")
_TO_BIOES = {"L": "E", "U": "S"}


def entities_of(tags: Sequence[str], is_plain: bool) -> list[Entity]:
    """Returns the entities of a sentence's tags, in any scheme.

    Args:
      tags: the tags.
      is_plain: whether they are plain. Then an entity consists of all neighbouring words with its type.
    """
    if is_plain:
        return get_entities([tag if tag == "O" else f"I-{tag}" for tag in tags])
    return get_entities([_TO_BIOES.get(tag[:1], tag[:1]) + tag[1:] for tag in tags])


def detect_scheme(sentences: Iterable[Sequence[str]]) -> str:
    """Returns the scheme of the tags of some sentences, one of `data_config.TAG_SCHEMES`.

    Tags are plain if none has a prefix. If entities begin with I-, and B- occurs only where IOB1 requires it, the
    scheme is IOB1. Otherwise it is IOB2 with mistakes.
    """
    tagged = [row for row in sentences if all(row)]  # an empty tag is a problem of its sentence
    tags = {tag for row in tagged for tag in row} - {"O"}
    prefixes = {tag[0] for tag in tags if TAG.fullmatch(tag)}
    if tags and not prefixes:
        return PLAIN
    if prefixes & set("ESLU"):
        return "bilou" if prefixes & set("LU") else "bioes"
    begins_inside = begins_after_other = False
    for row in tagged:
        last: Entity = ("", -2, -2)
        for entity in entities_of(row, is_plain=False):
            kind, start, _ = entity
            is_joined = last[0] == kind and last[2] == start - 1
            begins_inside |= row[start].startswith("I")
            begins_after_other |= row[start].startswith("B") and not is_joined
            last = entity
    return "iob1" if begins_inside and not begins_after_other else "iob2"


def tags_of(entities: Iterable[Entity], length: int, scheme: str) -> list[str]:
    """Returns the tags of a sentence's entities.

    Args:
      entities: the entities in order, without overlaps.
      length: the number of words in the sentence.
      scheme: one of `data_config.TAG_SCHEMES` except plain.
    """
    tags = ["O"] * length
    last_kind, last_end = "", -2
    for kind, start, end in entities:
        tags[start : end + 1] = [f"I-{kind}"] * (end + 1 - start)
        if scheme != "iob1" or (last_kind == kind and last_end == start - 1):
            tags[start] = f"B-{kind}"
        if scheme in ("bioes", "bilou"):
            single, last = "SE" if scheme == "bioes" else "UL"
            tags[end] = f"{single if start == end else last}-{kind}"
        last_kind, last_end = kind, end
    return tags
