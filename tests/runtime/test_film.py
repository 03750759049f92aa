"""Episodes of any length become GIFs of a bounded size that play at natural speed."""

import io

import numpy as np
import pytest
from PIL import Image

from rljax.runtime import film


def moving(moments, *, noise=0):
    """Moments that move a bright column through a picture, and how to take that picture."""
    now = {"t": 0, "taken": 0}
    rng = np.random.default_rng(0)

    def run():
        for t in range(moments):
            now["t"] = t
            yield t

    def picture():
        now["taken"] += 1
        image = rng.integers(0, noise + 1, (60, 300, 3), np.uint8)
        image[:, now["t"] % 300] = 255
        return image

    return now, run(), picture


def columns(frames):
    return [int(np.asarray(frame.convert("L")).mean(0).argmax()) for frame in frames]


def read(gif):
    """Frames of a GIF with the milliseconds that each is shown."""
    image = Image.open(io.BytesIO(gif))
    frames = []
    for i in range(image.n_frames):
        image.seek(i)
        frames.append((image.convert("L").copy(), image.info["duration"]))
    return frames


def test_a_short_episode_keeps_every_moment():
    _, run, picture = moving(8)
    shot, last = film.record(picture, run, frame_rate=25.0)
    assert (shot.stride, last) == (1, 7)
    assert columns(shot.frames) == [*range(8)]
    frames = read(film.to_gif(shot, frame_rate=25.0))
    assert columns(frame for frame, _ in frames) == [*range(8)]
    assert [pause for _, pause in frames] == [40] * 7 + [1000]


def test_a_long_episode_is_thinned_evenly_and_ends_with_its_end():
    moments = 4 * film.MAX_FRAMES + 3
    now, run, picture = moving(moments)
    shot, last = film.record(picture, run, frame_rate=25.0)
    assert last == moments - 1
    assert len(shot.frames) <= film.MAX_FRAMES + 1
    assert len(shot.frames) > film.MAX_FRAMES / 2
    assert now["taken"] < 0.6 * moments  # most of what is left out is not even drawn
    kept = [*range(0, moments, shot.stride)]
    assert columns(shot.frames) == [t % 300 for t in [*kept, moments - 1]]


@pytest.mark.parametrize("frame_rate", [4.0, 15.0, 30.0, 50.0, 125.0])
def test_it_plays_at_natural_speed(frame_rate):
    _, run, picture = moving(200)
    shot, _ = film.record(picture, run, frame_rate=frame_rate)
    pauses = [pause for _, pause in read(film.to_gif(shot, frame_rate=frame_rate))][:-1]
    assert min(pauses) >= 20  # or browsers slow it down
    assert sum(pauses) == pytest.approx(1000 * 199 / frame_rate, rel=0.03)


def test_what_compresses_badly_loses_frames_until_it_is_small():
    _, run, picture = moving(150, noise=200)
    shot, _ = film.record(picture, run, frame_rate=25.0)
    gif = film.to_gif(shot, frame_rate=25.0)
    assert len(gif) <= film.MAX_BYTES
    frames = read(gif)
    assert 30 < len(frames) < 100
    assert sum(pause for _, pause in frames[:-1]) == pytest.approx(1000 * 149 / 25, rel=0.03)


def test_large_pictures_are_made_smaller():
    shot, _ = film.record(lambda: np.zeros((900, 1200, 3), np.uint8), [0], frame_rate=1.0)
    assert shot.frames[0].size == (400, 300)


def test_nothing_to_record():
    with pytest.raises(ValueError, match="0 moments"):
        film.record(lambda: np.zeros((2, 2, 3), np.uint8), [], frame_rate=1.0)
