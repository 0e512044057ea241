"""Tables, plot and JSON of an anatomy, with numbers worked by hand."""

import json

import pytest

from purejaxppo.anatomy.advice import NO_TIME, Advice, more_environments
from purejaxppo.anatomy.measure import pieces_of
from purejaxppo.anatomy.report import Anatomy, Piece, words
from purejaxppo.anatomy.simulators import Workers, WorkerSpeed
from purejaxppo.anatomy.timing import Gain, Spread
from purejaxppo.config.schema import Config

pytestmark = pytest.mark.toy

FASTER = {"env.options.workers": "thread", "env.options.num_workers": 4}
CONFIG = Config().replace(**{"env.name": "gymnasium/CartPole-v1"})


def make(**changes):
    """Return the anatomy of 1000 steps per update: 3 ms, of which 2 ms are the simulator."""
    values = {
        "config": CONFIG,
        "description": "gymnasium/CartPole-v1",
        "steps_per_update": 1000,
        "pieces": (
            Piece("simulator", Spread(0.002, 0.0015, 0.0025)),
            Piece("update", Spread(0.0007, 0.0006, 0.0008)),
        ),
        "whole": Spread(0.003, 0.0028, 0.0031),
        "rounds": 5,
        "compile_seconds": 7.25,
        "workers": Workers("process", 2),
        "worker_speeds": (
            WorkerSpeed(Workers("thread", 4), Gain((0.002,) * 3, (0.001, 0.001, 0.0008))),
        ),
        "advice": (
            Advice(FASTER, Gain((3.0, 3.0, 3.0), (2.0, 1.5, 2.0))),
            Advice({"asynchronous": True}, Gain((1.0, 1.0, 1.0), (0.9, 1.1, 1.0))),
            Advice({"env.num_envs": 128}, note="not measured: it can gain at most 1.01x"),
        ),
    }
    return Anatomy(**values | changes)


def test_the_table_shows_pieces_their_sum_the_rest_and_the_whole():
    assert str(make()).splitlines() == [
        "gymnasium/CartPole-v1",
        "                               us/step    share   quartiles",
        "simulator                         2.00    66.7%   1.50 to 2.50",
        "update                            0.70    23.3%   0.60 to 0.80",
        "sum of the pieces                 2.70    90.0%",
        "unexplained                       0.30    10.0%",
        "whole                             3.00   100.0%   2.80 to 3.10",
        "333k steps/s in training; 5 rounds. Compiling and starting took 7.2 s in addition.",
        "",
        "simulator alone                steps/s   compared with 2 processes",
        "4 threads                           1M   2.00x (2.00 to 2.50)",
        "",
        "training with other settings, one after another:",
        "--env.options.workers thread --env.options.num_workers 4",
        "    recommended: 1.50x (1.50 to 2.00)",
        "--asynchronous",
        "    no clear winner: 1.00x (0.91 to 1.11)",
        "--env.num_envs 128",
        "    not measured: it can gain at most 1.01x",
        "recommended (1.50x together): --env.options.workers thread --env.options.num_workers 4",
    ]


def test_rounds_that_differ_a_lot_are_reported():
    text = "The rounds differ a lot. Stop other programs, and measure again."
    assert text in str(make(whole=Spread(0.003, 0.0025, 0.0032)))
    assert text not in str(make())


def test_without_a_clear_gain_the_present_settings_are_recommended():
    result = make(advice=make().advice[1:])
    assert result.changes == {} and result.gain == 1.0
    assert str(result).endswith("recommended: the present settings")


def test_without_comparisons_nothing_is_recommended():
    result = make(advice=[Advice({"asynchronous": True}, note=NO_TIME)])
    assert str(result).endswith("no recommendation: there was no time to compare settings")


def test_changes_are_those_of_all_recommended_settings():
    more = Advice({"env.num_envs": 128}, Gain((2.0,) * 3, (1.0,) * 3))
    result = make(advice=(*make().advice[:2], more))
    assert result.changes == {**FASTER, "env.num_envs": 128}
    assert result.gain == pytest.approx(3.0)  # 1.5 x 2
    config = CONFIG.replace(**result.changes)
    assert (config.env.num_envs, config.env.options["num_workers"]) == (128, 4)


def test_a_setting_that_is_slower_in_every_round_is_named_slower():
    slower = Advice({"asynchronous": True}, Gain((1.0,) * 3, (2.0, 2.0, 1.5)))
    assert slower.verdict == "slower: 0.50x (0.50 to 0.67)"


def test_settings_are_written_as_flags():
    assert words({"asynchronous": False, "env.num_envs": 4}) == "--no_asynchronous --env.num_envs 4"


def test_the_plot_has_a_bar_for_each_piece_and_the_rest(tmp_path):
    result = make()
    (axes,) = result.figure().axes
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([2.0, 0.7, 0.3])
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["simulator", "update", "unexplained"]
    assert [text.get_text() for text in axes.texts] == ["66.7%", "23.3%", "10.0%"]
    path = result.plot(tmp_path / "pieces.png")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_the_json_has_all_measurements():
    data = json.loads(json.dumps(make().to_dict()))
    assert data["pieces"]["simulator"] == {"median": 0.002, "low": 0.0015, "high": 0.0025}
    assert data["unexplained"] == pytest.approx(0.0003)
    assert data["workers"] == [{"kind": "thread", "number": 4, "gain": [2.0, 2.0, 2.5]}]
    assert data["recommended"] == FASTER
    assert [row["recommended"] for row in data["advice"]] == [True, False, False]


STAGES = {
    "whole": [20.0],
    "train": [10.0],
    "no update": [4.0],
    "no values": [3.0],
    "no statistics": [2.5],
    "loop": [0.5],
    "real": [9.0],
    "pool": [7.0],
    "noop": [3.0],
    "logging": [0.25],
}


def test_pieces_are_differences_of_stages():
    pieces = pieces_of(STAGES, on_host=True)
    assert pieces == {
        "simulator": [4.0],  # 7 - 3
        "pipes, shared memory": [3.0],
        "transfer to the program": [2.0],  # 9 - 7
        "inference, sampling": [2.0],  # 2.5 - 0.5
        "statistics": [0.5],
        "values, advantages (GAE)": [1.0],
        "update": [6.0],
        "logging": [0.25],
    }
    # The sum is the real steps, the update on recorded steps without their loop, and the logging.
    assert sum(x for (x,) in pieces.values()) == 9.0 + 10.0 - 0.5 + 0.25


def test_without_workers_or_callbacks_fewer_pieces_are_separate():
    game = {name: x for name, x in STAGES.items() if name != "noop"}
    assert pieces_of(game, on_host=True)["simulator"] == [7.0]
    assert pieces_of(game, on_host=True)["transfer to the program"] == [2.0]
    compiled = {name: x for name, x in game.items() if name != "pool"}
    assert pieces_of(compiled, on_host=False)["simulator"] == [9.0]
    assert pieces_of(compiled, on_host=True)["simulator, transfer to the program"] == [9.0]


def test_with_masks_the_policy_acts_in_the_stage_of_the_simulator():
    masked = {name: x for name, x in STAGES.items() if name not in ("loop", "pool", "noop")}
    pieces = pieces_of(masked, on_host=False)
    assert pieces["simulator"] == [6.5]  # 9 - 2.5
    assert pieces["inference, sampling"] == [2.5]


def test_more_environments_keep_the_steps_of_an_update():
    config = CONFIG.replace(**{"env.num_envs": 4, "ppo.rollout_length": 32})
    assert list(more_environments(config)) == [
        {"env.num_envs": 8, "ppo.rollout_length": 16},
        {"env.num_envs": 16, "ppo.rollout_length": 8},
    ]
    odd = CONFIG.replace(**{"env.num_envs": 4, "ppo.rollout_length": 9})
    assert not list(more_environments(odd))
