"""The picture: its pixels."""

from io import BytesIO

from PIL import Image

from onbeat_engine.lanes.png import COLOURS, LEFT, RIGHT, WIDTH, picture
from onbeat_engine.wire.lane_steps import Lanes, LaneStep


def colours(lanes: Lanes) -> tuple[Image.Image, set[str]]:
    image = Image.open(BytesIO(picture(lanes))).convert("RGB")
    found = image.getcolors(image.width * image.height)
    assert found is not None
    return image, {"#{:02x}{:02x}{:02x}".format(*colour) for _, colour in found if isinstance(colour, tuple)}


def test_kinds_have_their_colours_and_heights() -> None:
    steps = tuple(LaneStep(0, n, "prefill" if n == 4 else "decode", n % 2 == 0, duration=0.01 if n == 4 else 0.001)
                  for n in range(10))  # fmt: skip
    image, found = colours(Lanes({0: steps}, 2))
    assert {COLOURS["prefill"], COLOURS["decode"], "#f3ecd6"} <= found
    assert not {COLOURS["held"], COLOURS["mixed"]} & found
    wide = (WIDTH - LEFT - RIGHT) / 10

    def tall(number: int, kind: str) -> int:
        x = round(LEFT + (number + 0.5) * wide)
        column = [image.getpixel((x, y)) for y in range(90, image.height)]
        wanted = tuple(int(COLOURS[kind][at : at + 2], 16) for at in (1, 3, 5))
        return column.count(wanted)

    assert tall(4, "prefill") == 126
    assert 11 <= tall(3, "decode") <= 14


def test_a_prefill_among_many_steps_is_seen() -> None:
    steps = tuple(LaneStep(0, n, "prefill" if n == 3000 else "decode", n != 3000, duration=0.001) for n in range(6000))
    _, found = colours(Lanes({0: steps}, 2))
    assert COLOURS["prefill"] in found


def test_steps_without_times_are_drawn() -> None:
    _, found = colours(Lanes({0: (LaneStep(0, 0, "decode"),), 1: (LaneStep(1, 0, "dummy"),)}))
    assert {COLOURS["decode"], COLOURS["dummy"]} <= found
