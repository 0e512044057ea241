"""Videos of games: what agents observe, and Godot's own pictures where there is a display."""

import contextlib
import json
import os
import shutil

import numpy as np
import pytest
from support.godot import ENGINE, GAME, GAMES, launch
from support.runs import train
from support.unity import make_player

from purejaxppo import restore
from purejaxppo.config.schema import EnvConfig
from purejaxppo.envs import registry
from purejaxppo.envs.engines.godot import adapter as godot
from purejaxppo.envs.engines.godot.games import GodotGames
from purejaxppo.envs.engines.images import first_image
from purejaxppo.runs.recording import record_states
from purejaxppo.video import video

pytestmark = pytest.mark.xdist_group("processes")

CONFIG = """
env: {{name: {name}, num_envs: 2, options: {options}}}
network: {{hidden: [4]}}
ppo: {{rollout_length: 8, num_minibatches: 1, num_epochs: 1}}
eval: {{num_episodes: 0, max_steps: 12}}
logging: {{tensorboard: false}}
total_timesteps: 16
"""


def record_episode(folder, name, **options):
    """(pictures or observations, rewards) of an episode of an agent that has hardly learned."""
    file = folder / "small.yaml"
    file.write_text(CONFIG.format(name=name, options=json.dumps(options)))
    assert train(file, "--run_dir", str(folder / "run")) == 0
    return record_states(restore(folder / "run", "last"))


@pytest.fixture
def no_display(monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("purejaxppo.envs.engines.process.sys.platform", "linux")


@pytest.mark.toy
def test_the_first_image_of_an_observation_is_found_with_its_colours():
    image = np.arange(5 * 6 * 3, dtype=np.uint8).reshape(5, 6, 3)
    grey = image[..., :1]
    alpha = np.concatenate([image, np.full((5, 6, 1), 255, np.uint8)], -1)
    same = np.testing.assert_array_equal
    same(first_image(image), image)
    same(first_image(alpha), image)
    same(first_image({"a": np.zeros(3), "camera_2d": image, "z": 255 - image}), image)
    same(first_image(np.concatenate([255 - image, image], -1)), image)  # the newest of two
    same(first_image(np.moveaxis(image, -1, 0), channels_first=True), image)
    same(first_image(grey), np.repeat(grey, 3, -1))
    four = np.concatenate([255 - grey] * 3 + [grey], -1)  # a stack of grey images
    same(first_image(np.moveaxis(four, -1, 0), channels_first=True), np.repeat(grey, 3, -1))
    same(first_image((image / 255).astype(np.float32)), image)
    assert first_image({"obs": np.zeros(4), "grid": np.zeros((5, 6, 7), np.float32)}) is None


@pytest.mark.full
def test_a_unity_build_with_cameras_is_recorded_from_its_first_agents_observation(tmp_path):
    pytest.importorskip("grpc")
    path = make_player(tmp_path)
    arguments = "--camera stacked --agents 2 --parameter goal --length 3"
    options = {"arguments": arguments, "timeout": 20.0, "parameters.goal": 0.25}
    _, pictures, rewards = record_episode(tmp_path, f"unity/{path}", **options)
    assert len(pictures) == 4 and len(rewards) == 3
    for picture in pictures:  # shades of 100 (1 + goal), inverted in the newer of two images
        assert picture.shape == (8, 12, 3) and picture.dtype == np.uint8
        assert picture[5, 5].tolist() == [255 - 125] * 3
    task = registry.make(EnvConfig(name=f"unity/{path}", num_envs=2, options=options), 2)
    frame = video.frames(task.task, pictures)[1]
    task.close()
    assert frame.shape == (480, 640, 3)
    assert (np.abs(frame.astype(int) - 130).max(-1) < 8).mean() > 0.3  # enlarged


def test_a_game_without_a_display_is_recorded_from_its_first_agents_observation(
    tmp_path, no_display, caplog
):
    options = {"arguments": "--obs=camera", "timeout": 10.0}
    _, pictures, rewards = record_episode(tmp_path, f"godot/{GAME}", **options)
    assert len(pictures) == len(rewards) + 1
    assert all(picture.shape == (3, 4, 3) for picture in pictures)
    assert {tuple(pixel) for picture in pictures for pixel in picture.reshape(-1, 3).tolist()} == {
        *((0, 0, 0), (0, 1, 2), (4, 5, 6), (8, 9, 10))
    }
    (message,) = [
        record.getMessage() for record in caplog.records if "display" in record.getMessage()
    ]
    assert "no display found. The video shows the observations of the first agent" in message


@pytest.mark.toy
def test_a_window_without_a_display_is_rejected(no_display):
    config = EnvConfig(name=f"godot/{GAME}", num_envs=2, options={"show": True})
    with pytest.raises(ValueError, match=r"show = true: no display found"):
        registry.make(config, 2)


engine = pytest.mark.skipif(not ENGINE.exists(), reason="the engine is not there: make godot")
display = pytest.mark.skipif(
    not os.environ.get("DISPLAY"), reason="there is no display: run pytest within xvfb-run"
)


@pytest.mark.full
@engine
@display
def test_a_video_of_a_game_uses_the_frames_of_the_engine(tmp_path):
    shutil.copytree(GAMES / "chase", tmp_path / "chase")
    options = {"godot": str(ENGINE), "timeout": 60.0, "arguments": "--arenas=2"}
    task, states, rewards = record_episode(tmp_path, f"godot/{tmp_path / 'chase'}", **options)
    pictures = [state.pixels() for state in states]
    assert len(pictures) == len(rewards) + 1
    assert {picture.shape for picture in pictures} == {(320, 640, 3)}
    colours = (255, 165, 0), (255, 0, 0)  # of a hunter and of a dashing hunter
    red = [np.argwhere(sum(np.all(p == c, -1) for c in colours)) for p in pictures]
    assert all(60 <= len(pixels) <= 180 for pixels in red)  # two hunters, of radius 5
    assert len({pixels.tobytes() for pixels in red}) > 6  # they move
    path = video.record(task, states, tmp_path / "chase.gif", rewards=rewards)
    assert path.stat().st_size > 5_000


@pytest.mark.full
@engine
@display
def test_old_frames_are_removed_when_a_new_one_arrives(tmp_path):
    shutil.copytree(GAMES / "catch", tmp_path / "catch")
    flags = ("--path", str(tmp_path / "catch"), "--fixed-fps", "60", "--players=2")
    how = launch(*flags, program=ENGINE, timeout=60.0)
    how = godot.replace(how, record=True)
    with contextlib.closing(GodotGames(how, 5)) as games:
        games.reset(0)
        for _ in range(5):
            games.step(np.ones(2, int))
            assert games.render_frame().ndim == 3
            folder = games.group.games[0].engine.log.parent
            assert len(list(folder.glob("f*.png"))) == 1
    assert not folder.exists()
