"""Pictures of an episode as an animated GIF that stays small, however long the episode."""

import io
import itertools
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

import numpy as np
from PIL import Image

MAX_FRAMES = 501  # 500 steps and where they began
MAX_SIDE = 400  # pixels
MAX_BYTES = 2_000_000
COLOURS = 64
SHORTEST = 20  # milliseconds; browsers slow down what is shorter
HOLD = 1000  # milliseconds for the last picture

T = TypeVar("T")


class Film(NamedTuple):
    frames: list[Image.Image]
    stride: int  # moments from one frame to the next; the last frame is that of the last moment


def record(
    picture: Callable[[], np.ndarray], moments: Iterable[T], *, frame_rate: float
) -> tuple[Film, T]:
    """Takes pictures while `moments` goes by: each, or evenly fewer where there are many.

    Args:
      picture: gives uint8 [height, width, 3] of how things stand; called where a frame is kept.
      moments: at least one; what it is iterated for is what changes the picture.
      frame_rate: moments per second at natural speed; no more than 50 frames are taken of these.

    Returns:
      A `Film` of at most MAX_FRAMES + 1 frames, and the last of the moments.

    >>> film, last = record(lambda: np.zeros((4, 4, 3), np.uint8), range(7), frame_rate=100.0)
    >>> len(film.frames), film.stride, last
    (4, 2, 6)
    """
    frames: list[Image.Image] = []
    stride = max(1, math.ceil(frame_rate * SHORTEST / 1000))
    t, moment = -1, None
    for t, moment in enumerate(moments):  # noqa: B007, they are used after the loop
        if t % stride == 0:
            frames.append(_shrink(picture()))
            if len(frames) > MAX_FRAMES:
                frames, stride = frames[::2], 2 * stride
    if moment is None:
        raise ValueError("nothing to record: there are 0 moments, at least 1 is needed")
    if t % stride:
        frames.append(_shrink(picture()))
    return Film(frames, stride), moment


def to_gif(film: Film, *, frame_rate: float) -> bytes:
    """The film as a GIF that repeats for ever, near natural speed, the last frame held a second.

    Every second frame is left out, as often as it takes to get below MAX_BYTES.

    >>> film, _ = record(lambda: np.zeros((4, 4, 3), np.uint8), range(2), frame_rate=10.0)
    >>> to_gif(film, frame_rate=10.0)[:6]
    b'GIF89a'
    """
    (*frames, last), stride = film
    while True:
        # The clock of a GIF ticks 100 times a second; rounded one by one, the sum stays right.
        ticks = [round(100 * stride * i / frame_rate) for i in range(len(frames) + 1)]
        pauses = [max(SHORTEST, 10 * (b - a)) for a, b in itertools.pairwise(ticks)]
        first, *others = [*frames, last]
        buffer = io.BytesIO()
        first.save(
            buffer,
            "GIF",
            save_all=True,
            append_images=others,
            duration=[*pauses, HOLD],
            loop=0,
        )
        if buffer.tell() <= MAX_BYTES or len(frames) <= 1:
            return buffer.getvalue()
        frames, stride = frames[::2], 2 * stride


def _shrink(picture: np.ndarray) -> Image.Image:
    image = Image.fromarray(picture)
    image.thumbnail((MAX_SIDE, MAX_SIDE))
    return image.quantize(COLOURS, dither=Image.Dither.NONE)
