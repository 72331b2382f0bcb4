"""Lanes as a PNG, drawn like the page: ranks as rows, lock steps as columns, step time as height."""

from collections.abc import Iterable
from io import BytesIO
from math import ceil

from PIL import Image, ImageDraw, ImageFont

from onbeat_engine.lanes.html import LEGEND
from onbeat_engine.lanes.summary import headline, milliseconds, summarize
from onbeat_engine.wire.lane_steps import Lanes, LaneStep

WIDTH, LEFT, RIGHT, ROW, FOOT = 1600, 92, 20, 170, 16
"""Pixels."""
MOST_STEPS = 1500
"""Steps in a picture unless somebody asks for others: more than one a pixel are hard to tell apart."""
CLIP = 0.998
"""Share of the step times that fit into the rows; a longer one reaches the top."""
COLOURS = {
    "prefill": "#d55e00",
    "mixed": "#e69f00",
    "decode": "#56b4e9",
    "held": "#0072b2",
    "dummy": "#dcdcdc",
    "exchange": "#6b4fa0",
    "empty": "#ececec",
}
LETTERS = {"prefill": "P", "mixed": "M", "held": "H"}
"""Written above a bar that is wide enough."""
GROUND, INK, SOFT, LINE, BEAT = "#ffffff", "#22252b", "#5d6470", "#d8d5cf", "#f3ecd6"


def picture(lanes: Lanes) -> bytes:
    """Return the PNG of all steps; take a `window` of long runs first."""
    return _Picture(lanes).png()


class _Picture:
    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self.first, last = lanes.numbers() or (0, 0)
        self.columns = max(8, last + 1 - self.first)
        self.wide = (WIDTH - LEFT - RIGHT) / self.columns
        times = sorted(step.duration for step in lanes if step.duration is not None)
        self.tallest = (times[ceil((len(times) - 1) * CLIP)] if times else 0.0) or 1e-6
        self.timed = bool(times)
        self.words = [ImageFont.load_default(size) for size in (12, 15, 20)]
        title = self._wrapped(f"{headline(summarize(lanes))}.")
        self.top = 18 + 26 * len(title) + 34 + 30
        height = self.top + len(lanes.steps) * ROW + FOOT
        self.image = Image.new("RGB", (WIDTH, height), GROUND)
        self.pen = ImageDraw.Draw(self.image)
        for at, text in enumerate(title):
            self.pen.text((18, 14 + 26 * at), text, INK, self.words[2])
        self._legend(18 + 26 * len(title) + 4)

    def png(self) -> bytes:
        self._beats()
        self._axis()
        for row, (rank, steps) in enumerate(sorted(self.lanes.steps.items())):
            self._row(row, rank, steps)
        out = BytesIO()
        self.image.save(out, "PNG", optimize=True)
        return out.getvalue()

    def _wrapped(self, text: str) -> list[str]:
        lines = [""]
        for word in text.split(" "):
            longer = f"{lines[-1]} {word}".strip()
            if self.words[2].getlength(longer) > WIDTH - 36:
                lines.append(word)
            else:
                lines[-1] = longer
        return lines

    def _legend(self, y: int) -> None:
        drawn = {step.shown for step in self.lanes}
        if self.lanes.interval > 1:
            drawn |= {"beat", "off"}
        x = 18.0
        for kind, text in LEGEND.items():
            if kind not in drawn:
                continue
            if kind == "beat":
                self.pen.rectangle((x, y, x + 20, y + 15), BEAT)
                self.pen.ellipse((x + 8, y + 4, x + 12, y + 8), SOFT)
            elif kind == "off":
                self._mark(x + 10, y + 13)
            else:
                self._bar(kind, x, y, 20, 15)
            self.pen.text((x + 27, y - 1), text, SOFT, self.words[1])
            x += 27 + self.words[1].getlength(text) + 22

    def _x(self, number: float) -> float:
        return LEFT + (number - self.first) * self.wide

    def _beats(self) -> None:
        if self.lanes.interval == 1 or not self.lanes.lock_step or self.wide < 2.5:
            return
        bottom = self.top + len(self.lanes.steps) * ROW
        for number in sorted({step.number for step in self.lanes if step.beat}):
            x = self._x(number)
            self.pen.rectangle((x, self.top - 10, x + self.wide - 1, bottom), BEAT)
            if self.wide >= 5:
                middle = x + self.wide / 2
                self.pen.ellipse((middle - 2, self.top - 8, middle + 2, self.top - 4), SOFT)

    def _axis(self) -> None:
        every = _nice(self.columns / 14)
        for number in range(ceil(self.first / every) * every, self.first + self.columns, every):
            text = f"{number:,}"
            x = self._x(number + 0.5) - self.words[0].getlength(text) / 2
            self.pen.text((x, self.top - 27), text, SOFT, self.words[0])

    def _row(self, row: int, rank: int, steps: Iterable[LaneStep]) -> None:
        base = self.top + (row + 1) * ROW - 10
        room = ROW - 44
        self.pen.line((LEFT, base + 1, WIDTH - RIGHT, base + 1), LINE)
        self.pen.text((14, base - ROW / 2), f"rank {rank}", INK, self.words[1])
        if self.timed:
            for text, y in ((milliseconds(self.tallest), base - room - 6), ("0", base - 10)):
                self.pen.text((LEFT - 8 - self.words[0].getlength(text), y), text, SOFT, self.words[0])
        for step in self._visible(steps):
            tall = max(2.0, self._share(step) * room)
            x = self._x(step.number)
            gap = min(3.0, self.wide / 6) if self.wide >= 4 else 0.0
            self._bar(step.shown, x + gap / 2, base - tall, max(1.0, self.wide - gap), tall)
            top = base - tall - 3
            if self.wide >= 16 and (letter := LETTERS.get(step.shown)):
                at = x + (self.wide - self.words[0].getlength(letter)) / 2
                self.pen.text((at, top - 13), letter, SOFT, self.words[0])
                top -= 16
            if step.prefills and not step.beat:
                self._mark(x + self.wide / 2, top)

    def _visible(self, steps: Iterable[LaneStep]) -> Iterable[LaneStep]:
        """One step a pixel: prefill stands before the rest, a longer step before a shorter one."""
        if self.wide >= 1:
            return steps
        best: dict[int, LaneStep] = {}
        for step in steps:
            pixel = int(self._x(step.number))
            if pixel not in best or _importance(step) > _importance(best[pixel]):
                best[pixel] = step
        return best.values()

    def _share(self, step: LaneStep) -> float:
        if step.duration is None:
            return 0.03 if step.kind == "exchange" else 0.12
        return min(1.0, step.duration / self.tallest)

    def _bar(self, kind: str, x: float, y: float, width: float, height: float) -> None:
        box = (round(x), round(y), max(round(x), round(x + width) - 1), max(round(y), round(y + height) - 1))
        self.pen.rectangle(box, COLOURS[kind], outline="#8f8f8f" if kind == "dummy" and width > 3 else None)
        if kind not in ("mixed", "held") or width < 4:
            return
        # Stripes: mixed up, held down; so that colour is never alone.
        for line in range(box[1], box[3] + 1):
            for spot in range(box[0], box[2] + 1):
                if (spot + line if kind == "mixed" else spot - line) % 5 == 0:
                    self.pen.point((spot, line), GROUND)

    def _mark(self, x: float, y: float) -> None:
        self.pen.polygon(((x - 5, y - 9), (x + 5, y - 9), (x, y)), INK)


def _importance(step: LaneStep) -> tuple[bool, bool, float]:
    return (step.prefills and not step.beat, step.prefills, step.duration or 0.0)


def _nice(raw: float) -> int:
    """Return the smallest of 1, 2, 5, 10, 20, ... that is not below a number."""
    power = 1
    while True:
        for factor in (1, 2, 5):
            if factor * power >= raw:
                return factor * power
        power *= 10
