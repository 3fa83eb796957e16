"""A set of pre-training examples as one HTML page, without anything from elsewhere, for a screen of any width."""

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bert_tf.tokenization.vocabulary import CONTINUATION

# Numbers are put together to at most this many bars.
_BARS = 64
_STYLE = """
:root { color-scheme: light dark; --bar: #3b6fb5; --line: #8884; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 0 1rem 3rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
table { border-collapse: collapse; width: 100%; }
td { border-bottom: 1px solid var(--line); padding: .2rem .5rem .2rem 0; }
td, p { overflow-wrap: anywhere; } td:last-child { text-align: right; }
figure { margin: 0; } svg { width: 100%; height: 8rem; display: block; } rect { fill: var(--bar); }
figcaption { display: flex; justify-content: space-between; font-size: .85rem; }
.parts { display: flex; height: 1.6rem; }
.parts div { overflow: hidden; white-space: nowrap; padding: 0 .3rem; color: #fff; }
article { border: 1px solid var(--line); border-radius: .4rem; padding: 0 .8rem; margin: .8rem 0; }
mark { border-radius: .2rem; padding: 0 .15rem; color: #000; }
.mask { background: #f6c64f; } .same { background: #9fd8a0; } .other { background: #f3a6a0; }
""".strip()
NEXT_SENTENCES = ("B follows A", "B is from another document")  # by whether the label is set
_COLORS = ("#3b6fb5", "#a8552f", "#4c7a3d")


class Histogram(NamedTuple):
    """How often numbers occur.

    Attributes:
      title: what they are numbers of.
      counts: number -> how often.
    """

    title: str
    counts: Mapping[int, int]


class Shares(NamedTuple):
    """The parts of a whole.

    Attributes:
      title: what is divided.
      counts: name of a part -> its size.
    """

    title: str
    counts: Mapping[str, int]


class SampledExample(NamedTuple):
    """An example to show.

    Attributes:
      place: its file and number.
      features: the arrays of one example.
    """

    place: str
    features: Mapping[str, np.ndarray]


def page(
    title: str,
    tables: Mapping[str, Iterable[tuple[str, object]]],
    figures: Sequence[Histogram | Shares],
    examples: Sequence[SampledExample],
    pieces: Mapping[int, str],
) -> str:
    """Returns the page.

    Args:
      title: its title.
      tables: heading -> rows of a name and a value.
      figures: what is to be drawn.
      examples: the examples to show.
      pieces: id -> piece.
    """
    legend = " ".join(
        f'<mark class="{kind}">{text}</mark>'
        for kind, text in (("mask", "replaced by [MASK]"), ("same", "left as it is"), ("other", "word → other piece"))
    )
    blocks = [f"<h2>{_text(heading)}</h2>{_table(rows)}" for heading, rows in tables.items()]
    blocks += [
        f"<h2>{_text(f.title)}</h2>{_bars(f.counts) if isinstance(f, Histogram) else _parts(f.counts)}" for f in figures
    ]
    blocks += [f"<h2>Examples</h2><p>To be predicted: {legend}</p>", *(_example(e, pieces) for e in examples)]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head>"
        f"<body><h1>{_text(title)}</h1>{''.join(blocks)}</body></html>\n"
    )


def _text(value: object) -> str:
    return html.escape(str(value))


def _table(rows: Iterable[tuple[str, object]]) -> str:
    cells = "".join(f"<tr><td>{_text(name)}</td><td>{_text(value)}</td></tr>" for name, value in rows)
    return f"<table>{cells}</table>"


def _bars(counts: Mapping[int, int]) -> str:
    first, last = min(counts), max(counts)
    width = -(-(last - first + 1) // _BARS)
    bars = [0] * -(-(last - first + 1) // width)
    for number, count in counts.items():
        bars[(number - first) // width] += count
    highest = max(bars)
    drawn = []
    for i, count in enumerate(bars):
        start, height = first + i * width, 100 * count / highest
        end = min(start + width - 1, last)
        label = f"{start} to {end}: {count}" if end > start else f"{start}: {count}"
        rect = f'<rect x="{i + 0.05:.2f}" y="{100 - height:.2f}" width="0.9" height="{height:.2f}">'
        drawn.append(f"{rect}<title>{label}</title></rect>")
    svg = f'<svg viewBox="0 0 {len(bars)} 100" preserveAspectRatio="none" role="img">{"".join(drawn)}</svg>'
    caption = f"<span>{first}</span><span>highest bar: {highest}</span><span>{last}</span>"
    return f"<figure>{svg}<figcaption>{caption}</figcaption></figure>"


def _parts(counts: Mapping[str, int]) -> str:
    total = max(1, sum(counts.values()))
    colored = zip(counts.items(), _COLORS * len(counts), strict=False)
    parts = "".join(
        f'<div style="flex:{count};background:{color}" title="{_text(name)}">{count / total:.1%}</div>'
        for (name, count), color in colored
        if count
    )
    return f'<div class="parts">{parts}</div>{_table((name, f"{n} ({n / total:.2%})") for name, n in counts.items())}'


def labels_of(features: Mapping[str, np.ndarray]) -> dict[int, int]:
    """The original ids of an example's masked tokens, by position; none if masks are drawn during training."""
    if "masked_lm_ids" not in features:
        return {}
    count = int(features["masked_lm_weights"].sum())
    return dict(zip(features["masked_lm_positions"][:count], features["masked_lm_ids"][:count], strict=True))


def _example(example: SampledExample, pieces: Mapping[int, str]) -> str:
    features = example.features
    labels = labels_of(features)
    segments = ["", ""]
    length = int(features["input_mask"].sum())
    for place, (index, segment) in enumerate(
        zip(features["input_ids"][:length], features["segment_ids"][:length], strict=True)
    ):
        label = labels.get(place)
        shown = _piece(pieces[index], None if label is None else pieces[label])
        # A piece that continues a word stands close to it.
        continues = (pieces[index] if label is None else pieces[label]).startswith(CONTINUATION)
        segments[segment] += shown if continues else f" {shown}"
    next_sentence = NEXT_SENTENCES[bool(features["next_sentence_labels"])]
    heading = f"{_text(example.place)}: {length} tokens, {len(labels)} to be predicted; {next_sentence}"
    return f"<article><p><b>{heading}</b></p><p>A:{segments[0]}</p><p>B:{segments[1]}</p></article>"


def _piece(piece: str, label: str | None) -> str:
    if label is None:
        return _text(piece.removeprefix(CONTINUATION))
    word = _text(label.removeprefix(CONTINUATION))
    if piece == "[MASK]":
        return f'<mark class="mask">{word}</mark>'
    if piece == label:
        return f'<mark class="same">{word}</mark>'
    return f'<mark class="other">{word} → {_text(piece)}</mark>'
