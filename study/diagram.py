"""A drawing of the whole Transformer in which every box links to its operation: post-norm, pre-norm, and attention.

The structures of the parameters determine the content of a block and its order.
"""

from __future__ import annotations

from typing import NamedTuple

from jinja2 import Environment

from conformance.side_by_side.operations import OPERATIONS
from specification.parameters import DecoderBlock, EncoderBlock
from study.drawing import GAP, TALL, Box, Column, Drawing, Frame, Label

WIDTH = 360
"""Of every drawing: what a phone shows without scrolling."""
SUBLAYERS = {
    "attention": ("Self-attention", "multi_head_attention.html", "attention", "mask: padding"),
    "self_attention": ("Self-attention", "multi_head_attention.html", "attention", "mask: causal"),
    "cross_attention": ("Cross-attention", "multi_head_attention.html", "attention", "mask: padding"),
    "feed_forward": ("Feed-forward", "feed_forward.html", "forward", ""),
}
"""Title, page, colour and second line, by the name that the sublayer has in its block."""


class Figure(NamedTuple):
    """A drawing with its name, what is said of it, and what it shows in words."""

    name: str
    title: str
    caption: str
    formula: str
    words: str
    drawing: Drawing


def sublayers(block: type[EncoderBlock | DecoderBlock]) -> list[str]:
    """The names of a block's sublayers in order: each is followed by its norm."""
    names = block._fields
    return [name for name in names if f"{name}_norm" in names]


def norm(column: Column, about: str) -> None:
    column.box("Layer norm", "layer_norm.html", "norm", about=about)


def sublayer(column: Column, name: str, order: str) -> Box:
    """A sublayer with its norm and the way around it (BLK-1). Returns the sublayer's own box."""
    title, href, kind, small = SUBLAYERS[name]
    start = column.branch()
    if order == "pre":
        norm(column, f"of the {title.lower()}")
    made = column.box(title, href, kind, small=small)
    column.join(start, "blocks.html#residual", f"what went into the {title.lower()} is added")
    if order == "post":
        norm(column, f"of the {title.lower()}")
    return made


def stack(
    column: Column, block: type[EncoderBlock | DecoderBlock], order: str, frame: tuple[float, float], name: str
) -> dict[str, Box]:
    """Embedding, positions and one block in its frame. Returns the boxes of the sublayers by name."""
    made, about = {}, f"of the {name.lower()}"
    tag = Box(column.x, 40, 84, 26, name, f"transformer.html#{name.lower()}", "tag")
    column.drawing.boxes.append(tag)
    column.box("Embedding", "embedding.html", "lookup", about=about)
    column.box("Positions", "positions.html", "lookup", about=f"{about}, added")
    bottom = column.y - GAP / 2
    column.rise(GAP)
    for one in sublayers(block):
        made[one] = sublayer(column, one, order)
    top = column.y - 40
    column.drawing.frames.append(Frame(frame[0], top, frame[1], bottom - top))
    column.rise(column.y - top)
    column.drawing.boxes.append(
        Box(frame[0] + 36, top + 18, 60, 24, "N blocks", f"blocks.html#{name.lower()}_block", "tag", about=about)
    )
    return made


def whole(order: str) -> Drawing:
    """Encoder and decoder, with the norm after every sum ("post") or before every sublayer ("pre")."""
    drawing = Drawing()
    drawing.labels += [Label(84, 16, "source tokens"), Label(268, 16, "target tokens, so far")]
    encoder = Column(drawing, 84, 120, 0, side=-1, around=73)
    decoder = Column(drawing, 268, 128, 0, side=1, around=80)
    stack(encoder, EncoderBlock, order, (3, 152), "Encoder")
    if order == "pre":
        norm(encoder, "last of the encoder")
    made = stack(decoder, DecoderBlock, order, (196, 161), "Decoder")
    cross = made["cross_attention"]
    turn = encoder.y - GAP
    points = [(84.0, encoder.y), (84.0, turn), (176.0, turn), (176.0, cross.y), (cross.left, cross.y)]
    drawing.line(*points)
    if order == "pre":
        norm(decoder, "last of the decoder")
    decoder.box("Linear", "multi_head_attention.html#linear", "forward", about="to logits")
    decoder.box("Decoding", "decoding.html", "output", small="step by step")
    decoder.box("Generation", "generation.html", "output", small="the next token")
    return drawing


def inside() -> Drawing:
    """Multi-head attention from below: projections, scores, softmax, values, and one more projection."""
    drawing = Drawing()
    places = {"query": 62.0, "key": 180.0, "value": 298.0}
    tops = {}
    for name, x in places.items():
        drawing.labels.append(Label(x, 16, name))
        column = Column(drawing, x, 96, 0)
        column.box("Linear", "multi_head_attention.html#linear", "forward", small=f"{name}, by head")
        tops[name] = column.y
    middle = Column(drawing, 121, 150, tops["query"])
    scores = Box(
        121, middle.y - 2 * GAP - TALL / 2, 150, TALL, "Scores", "scores.html", "attention", "scale, softcap, bias"
    )
    for name, x in (("query", 84.0), ("key", 158.0)):
        turn = tops[name] - GAP
        drawing.line((places[name], tops[name]), (places[name], turn), (x, turn), (x, scores.top + scores.height))
    drawing.boxes.append(scores)
    middle.y = scores.top
    middle.box("Masks", "masks.html", "mask", small="who may attend")
    softmax = middle.box("Softmax", "softmax.html", "attention", small="weights")
    attention = middle.box("Attention", "attention.html", "attention", small="weighted values")
    value, right, turn = places["value"], WIDTH - 12, tops["value"] - GAP
    drawing.line(
        (value, tops["value"]), (value, turn), (right, turn), (right, attention.y),
        (attention.left + attention.width, attention.y),
    )  # fmt: skip
    beside = Box(270, softmax.y, 120, TALL, "Companions", "companions.html", "output", "log-sum-exp, parts")
    drawing.line((softmax.left + softmax.width, softmax.y), (beside.left, softmax.y))
    drawing.boxes.append(beside)
    middle.box("Concatenate", "multi_head_attention.html#concatenate_heads", "forward", about="the heads")
    middle.box("Linear", "multi_head_attention.html#linear", "forward", about="of the output")
    return drawing


# --- the page ---------------------------------------------------------------------------------------------------------

ORDERS = {
    "post": ("Post-norm", "As in the paper: a norm after every sum.", "x = norm(x + sublayer(x))"),
    "pre": ("Pre-norm", "As in most models since: a norm before every sublayer, and a last one.",
            "x = x + sublayer(norm(x))"),
}  # fmt: skip


def words(drawing: Drawing) -> str:
    """The boxes from below to above, as they follow each other."""
    return "From the bottom up: " + "; ".join(box.name for box in drawing.boxes) + "."


def figures() -> list[Figure]:
    found = [Figure(order, *told, words(whole(order)), whole(order)) for order, told in ORDERS.items()]
    caption = "The steps inside each box of self-attention and cross-attention."
    return [*found, Figure("inside", "Inside multi-head attention", caption, "", words(inside()), inside())]


def linked() -> set[str]:
    """The operations to which boxes lead."""
    return {box.href.partition(".html")[0] for figure in figures() for box in figure.drawing.boxes}


def rendered(made: Environment) -> dict[str, str]:
    """The page by its name."""
    beside = [one for one in OPERATIONS if one.name not in linked()]
    page = made.get_template("diagram.html").render(page="diagram", figures=figures(), width=WIDTH, beside=beside)
    return {"diagram": page}
