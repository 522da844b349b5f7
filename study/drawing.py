"""Boxes, lines and frames of a drawing, in units of about a pixel on a phone. y grows downwards."""

from __future__ import annotations

from typing import NamedTuple

Point = tuple[float, float]

TALL, LOW, GAP, RADIUS = 40.0, 27.0, 13.0, 13.0
"""Heights of boxes with two lines of text and with one, the way between boxes, and the circle of a sum."""


class Box(NamedTuple):
    """A link. kind: how it is coloured. x, y: of the middle. small: a second line of text."""

    x: float
    y: float
    width: float
    height: float
    title: str
    href: str
    kind: str
    small: str = ""
    about: str = ""  # told to who cannot see where it stands

    @property
    def top(self) -> float:
        return self.y - self.height / 2

    @property
    def left(self) -> float:
        return self.x - self.width / 2

    @property
    def round(self) -> bool:
        return self.kind == "sum"

    @property
    def name(self) -> str:
        """What it is called where it is not seen; begins with the text that is seen."""
        seen = f"{self.title} {self.small}".strip()
        return f"{seen}, {self.about}" if self.about else seen


class Line(NamedTuple):
    points: tuple[Point, ...]
    arrow: bool = True

    @property
    def path(self) -> str:
        return "M" + " L".join(f"{x:g} {y:g}" for x, y in self.points)

    @property
    def head(self) -> str:
        """A triangle at the end, in the direction of the last piece."""
        (x0, y0), (x, y) = self.points[-2:]
        size = max(abs(x - x0), abs(y - y0)) or 1
        along, across = ((x - x0) / size, (y - y0) / size), ((y - y0) / size, (x0 - x) / size)
        base = x - 6 * along[0], y - 6 * along[1]
        corners = [(base[0] + side * 3.5 * across[0], base[1] + side * 3.5 * across[1]) for side in (1, -1)]
        return "M" + " L".join(f"{px:g} {py:g}" for px, py in [(x, y), *corners]) + " Z"


class Frame(NamedTuple):
    left: float
    top: float
    width: float
    height: float


class Label(NamedTuple):
    x: float
    y: float
    text: str
    anchor: str = "middle"


class Drawing:
    """What is drawn so far."""

    def __init__(self) -> None:
        self.boxes: list[Box] = []
        self.lines: list[Line] = []
        self.frames: list[Frame] = []
        self.labels: list[Label] = []
        self.dots: list[Point] = []

    def line(self, *points: Point, arrow: bool = True) -> None:
        self.lines.append(Line(points, arrow))

    @property
    def top(self) -> float:
        return min([box.top for box in self.boxes] + [frame.top for frame in self.frames]) - 6

    @property
    def bottom(self) -> float:
        return max([box.top + box.height for box in self.boxes] + [label.y for label in self.labels]) + 8


class Column:
    """Boxes one above the other, drawn upwards. y: how high the flow has come. side: of the ways around, -1 is left."""

    def __init__(self, drawing: Drawing, x: float, width: float, y: float, side: int = 0, around: float = 0.0) -> None:
        self.drawing, self.x, self.width, self.y, self.side, self.around = drawing, x, width, y, side, around

    def box(self, title: str, href: str, kind: str, *, small: str = "", about: str = "") -> Box:
        """The next box, with the arrow that leads to it. A sum is a small circle."""
        height = 2 * RADIUS if kind == "sum" else TALL if small else LOW
        width = 2 * RADIUS if kind == "sum" else self.width
        made = Box(self.x, self.y - GAP - height / 2, width, height, title, href, kind, small, about)
        self.drawing.line((self.x, self.y), (self.x, made.top + height))
        self.drawing.boxes.append(made)
        self.y = made.top
        return made

    def rise(self, height: float) -> None:
        """The flow goes on without a box."""
        self.drawing.line((self.x, self.y), (self.x, self.y - height), arrow=False)
        self.y -= height

    def branch(self) -> Point:
        """Where a way around begins."""
        self.rise(7)
        self.drawing.dots.append((self.x, self.y))
        return self.x, self.y

    def join(self, start: Point, href: str, about: str) -> None:
        """The sum, and the way around that leads to it."""
        made = self.box("+", href, "sum", about=about)
        beside = self.x + self.side * self.around
        end = (self.x + self.side * RADIUS, made.y)
        self.drawing.line(start, (beside, start[1]), (beside, made.y), end)
