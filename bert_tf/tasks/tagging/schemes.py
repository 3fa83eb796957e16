"""Tagged sentences, and tagging schemes.

Entities are spans of words with a type. The following schemes can be read and written:

    words   Alex  is  in  Los    Angeles
    iob2    B-PER O   O   B-LOC  I-LOC
    iob1    I-PER O   O   I-LOC  I-LOC     (B- only directly after an entity of the same type)
    bioes   S-PER O   O   B-LOC  E-LOC
    bilou   U-PER O   O   B-LOC  L-LOC
    bmes    S-PER O   O   B-LOC  E-LOC     (M- inside of longer entities)
    bmewo   W-PER O   O   B-LOC  E-LOC     (like bmes, but W- for a single word)
    plain   PER   O   O   LOC    LOC       (or tags that are not entities, such as parts of speech)

Other spellings are converted: B_PER, b-per and PER-B to B-PER, and B without a type to B-_.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Self

from seqeval.metrics.sequence_labeling import get_entities

from bert_tf.runtime.errors import InputError

AUTO, PLAIN = "auto", "plain"
# The type, the first word and the last word of an entity.
Entity = tuple[str, int, int]

# The prefixes of an entity's first word, inner words and last word, and of a single word.
_LETTERS = {"iob2": "BIIB", "iob1": "IIII", "bioes": "BIES", "bilou": "BILU", "bmes": "BMES", "bmewo": "BMEW"}
TAG = re.compile(r"O|[BIESLUMW]-.+")
# Tags of CoNLL-2012, such as "(PER*" and "*)".
_BRACKETS = re.compile(r"(\([^()*]+)+\*?\)*|\*\)+")
_SEVERAL = re.compile(r".*[|,;+][BI]-.*")
_TO_BIOES = {"L": "E", "U": "S", "M": "I", "W": "S"}
_OTHER_SPELLINGS = (
    re.compile(r"(?P<letter>[BIESLUMW])[\W_](?P<kind>.+)", re.IGNORECASE),
    re.compile(r"(?P<kind>.+)[\W_](?P<letter>[BIESLUMW])", re.IGNORECASE),
    re.compile(r"(?P<letter>[BIESLUMW])[\W_]?(?P<kind>)", re.IGNORECASE),
)


@dataclasses.dataclass(frozen=True)
class Sentence:
    """Words with their tags.

    Attributes:
      path: the file; "" for a sentence in memory.
      words: the words, as written in the file.
      tags: the tags; None if they were not read.
      lines: for each word, the line number in the file or the row of the table; in memory, the index of the sentence.
      document: the index of the document; None if the file does not mark documents.
      problem: the reason why the sentence can't be used, or "".
      line: the line of the problem; without a problem, the first line.
      scheme: the tagging scheme of the file.
    """

    path: str = dataclasses.field(repr=False)  # excluded, so sentences of a copied file have the same repr
    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    lines: tuple[int, ...]
    document: int | None
    problem: str
    line: int
    scheme: str = dataclasses.field(default="iob2", repr=False)

    @classmethod
    def in_row(cls, path: str, words: Sequence[str], tags: Sequence[str] | None, line: int) -> Self:
        """Returns a sentence in one row of a table, or in memory."""
        return cls(path, tuple(words), tags and tuple(tags), (line,) * len(words), None, "", line)

    @classmethod
    def unusable(cls, path: str, problem: str, line: int) -> Self:
        """Returns a sentence without words for a row that can't be used."""
        return cls(path, (), None, (), None, problem, line)

    @property
    def where(self) -> str:
        """File and line, or the index of the sentence, for messages."""
        return f"{self.path}, line {self.line}" if self.path else f"sentence {self.line}"

    @property
    def is_plain(self) -> bool:
        """Whether the tags are plain."""
        return self.scheme == PLAIN

    @property
    def label(self) -> tuple[str, ...]:
        """The type of each entity."""
        return tuple(kind for kind, *_ in self.entities())

    def entities(self) -> list[Entity]:
        """Returns the entities of the tags, in any scheme. An entity may begin with I-."""
        return entities_of(self.tags, self.is_plain)

    def labels(self) -> list[tuple[str, int]]:
        """Returns the type and the index of the first word of each entity, or each plain tag and its index."""
        if self.is_plain:
            return [(tag, index) for index, tag in enumerate(self.tags)]
        return [(kind, start) for kind, start, _ in self.entities()]

    def checked(self, usual: Callable[[str], str], scheme: str) -> Self:
        """Returns the sentence with the usual spelling of tags. Sets `problem` if a word or a tag can't be used."""
        tags = self.tags and tuple(map(usual, self.tags))
        is_tag = str.strip if scheme == PLAIN else TAG.fullmatch
        problem, line = self.problem, self.line
        for word, tag, number in zip(self.words, tags or self.words, self.lines, strict=True):
            if problem:
                break
            line = number
            if not word.strip():
                problem = "the word is empty. Add it."
            elif tags and _BRACKETS.fullmatch(tag):
                problem = f"the tag {tag!r} has the brackets of CoNLL-2012. Convert the tags to IOB2."
            elif tags and _SEVERAL.fullmatch(tag):
                problem = f"the tag {tag!r} has several entities. Keep one of them."
            elif tags and not is_tag(tag):
                problem = (
                    f"the tag is {tag!r}. Use O, or B-, I-, E-, S-, L-, U-, M- or W- followed by a type, or pass the "
                    "tags' column (--tag_column) or scheme (--tag_scheme)."
                )
        return dataclasses.replace(self, tags=tags, problem=problem, line=line if problem else self.line, scheme=scheme)


def entities_of(tags: Sequence[str], is_plain: bool) -> list[Entity]:
    """Returns the entities of a sentence.

    Args:
      tags: the tags of the sentence, in any scheme.
      is_plain: whether the tags are plain. If True, neighbouring words with the same tag other than O are one entity.
    """
    if is_plain:
        return get_entities([tag if tag == "O" else f"I-{tag}" for tag in tags])
    return get_entities(list(map(as_bioes, tags)))


def as_bioes(tag: str) -> str:
    """Returns a tag with the prefix of BIOES."""
    return _TO_BIOES.get(tag[:1], tag[:1]) + tag[1:]


def spelling(tags: Iterable[str]) -> Callable[[str], str]:
    """Returns a function that converts the tags of a data set to the usual spelling, such as "per_b" to "B-PER".

    A spelling is recognized if most tags fit it, more tags fit it than the usual spelling, and one of them has the
    prefix B or I. The function does not change tags that don't fit.
    """
    spellings = set(tags) - {"O", "o"}
    fitting = len(list(filter(TAG.fullmatch, spellings)))
    for other in _OTHER_SPELLINGS:
        matches = [match for match in map(other.fullmatch, spellings) if match]
        is_common = (
            2 * len(matches) > len(spellings) if matches and matches[0]["kind"] else len(matches) == len(spellings)
        )
        if is_common and len(matches) > fitting and any(match["letter"] in "BbIi" for match in matches):

            def usual(tag: str, other: re.Pattern = other) -> str:
                match = other.fullmatch(tag)
                return f"{match['letter'].upper()}-{match['kind'] or '_'}" if match else "O" if tag == "o" else tag

            return usual
    return lambda tag: "O" if tag == "o" and fitting else tag


def detect_scheme(sentences: Iterable[Sequence[str]], place: str = "") -> str:
    """Returns the tagging scheme of sentences, a `data_config.TagScheme`.

    If no tag has a prefix, the tags are plain. If there are prefixes other than B and I, they determine the scheme. If
    entities begin with I-, and B- occurs only where IOB1 requires it, the scheme is IOB1; otherwise, IOB2.

    Args:
      sentences: the tags of each sentence.
      place: the source of the sentences, for messages.

    Raises:
      InputError: if the tags have unknown prefixes.
    """
    tagged = [row for row in sentences if all(row)]  # sentences with an empty tag can't be used
    usual = spelling(tag for row in tagged for tag in row)
    tagged = [list(map(usual, row)) for row in tagged]
    tags = {tag for row in tagged for tag in row} - {"O"}
    prefixes = {tag[0] for tag in tags if TAG.fullmatch(tag)}
    if tags and not prefixes:
        has_o = any("O" in row for row in tagged)
        parts = [re.split(r"[\W_]", tag, maxsplit=1) for tag in tags]
        prefixes, kinds = ({part[end] for part in parts} for end in (0, -1))
        if has_o and len(kinds) < len(tags) and 2 * len(tags) > len(prefixes) * len(kinds):  # most combinations occur
            raise InputError(
                f"the tags {', '.join(sorted(tags)[:4])} have unknown prefixes. Use B-, I-, E-, S-, L-, U-, M- or W-, "
                "or pass --tag_scheme=plain if each tag is a class.",
                place,
            )
        return PLAIN
    if prefixes - set("BI"):
        return scheme_of_prefixes(prefixes)
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


def scheme_of_prefixes(prefixes: set[str]) -> str:
    """Returns the scheme with most of the given prefixes. If several schemes match, the one with fewest prefixes."""
    return max(_LETTERS, key=lambda scheme: (len(prefixes & set(_LETTERS[scheme])), -len(set(_LETTERS[scheme]))))


def tags_of(entities: Iterable[Entity], length: int, scheme: str) -> list[str]:
    """Returns the tags of a sentence with the given entities.

    Args:
      entities: the entities in order, without overlaps.
      length: the number of words in the sentence.
      scheme: a `data_config.TagScheme` except auto and plain.
    """
    tags = ["O"] * length
    begin, inside, last, single = _LETTERS[scheme]
    last_kind, last_end = "", -2
    for kind, start, end in entities:
        letters = begin + inside * (end - start - 1) + last if end > start else single
        if scheme == "iob1" and last_kind == kind and last_end == start - 1:
            letters = "B" + letters[1:]
        tags[start : end + 1] = [f"{letter}-{kind}" for letter in letters]
        last_kind, last_end = kind, end
    return tags
