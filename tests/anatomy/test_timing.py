"""Measurements in turns: order, number of rounds, Ctrl-C, and clear gains."""

import signal

import pytest

from purejaxppo.anatomy import timing
from purejaxppo.anatomy.timing import MIN_ROUNDS, Budget, Gain, Spread, in_turns
from purejaxppo.interrupts import Interrupt

pytestmark = pytest.mark.toy


@pytest.fixture
def interrupt():
    with Interrupt() as interrupt:
        yield interrupt


class Clock:
    """A clock in the place of `time`, on which each work takes its own seconds."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now

    def work(self, seconds, calls, name=""):
        def run(count):
            self.now += seconds * count
            calls.append(name)

        return run


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(timing, "time", clock)
    return clock


def test_the_median_and_the_quartiles_are_those_of_the_rounds():
    assert Spread.of([5.0, 1.0, 2.0, 4.0, 3.0]) == (3.0, 2.0, 4.0)


@pytest.mark.parametrize(
    ("before", "after", "is_clear"),
    [
        ((2.0, 2.0, 2.0), (1.0, 1.0, 1.0), True),
        ((2.0, 2.0, 2.0), (1.9, 1.9, 1.9), True),  # 1.053
        ((2.0, 2.0, 2.0), (1.95, 1.95, 1.95), False),  # 1.026
        ((2.0, 2.0, 2.0), (1.0, 2.1, 1.0), False),  # slower in one round
        ((2.0, 2.0), (1.0, 1.0), False),  # too few rounds
    ],
)
def test_a_gain_is_clear_if_every_round_is_faster_and_the_median_worthwhile(
    before, after, is_clear
):
    assert Gain(before, after).is_clear == is_clear


def test_a_gain_is_the_ratio_of_paired_rounds():
    gain = Gain((3.0, 4.0, 9.0), (2.0, 2.0, 3.0))
    assert gain.ratios == (1.5, 2.0, 3.0)
    assert str(gain) == "2.00x (1.50 to 3.00)"
    assert gain.times(10.0) == ((30.0, 40.0, 90.0), (20.0, 20.0, 30.0))


def test_works_are_measured_in_turns_for_the_share_of_seconds(clock, interrupt):
    calls = []
    works = {"a": clock.work(1.0, calls, "a"), "b": clock.work(2.0, calls, "b")}
    times = in_turns(works, Budget(100.0, interrupt), share=15.0)
    assert times == {"a": [1.0] * 5, "b": [2.0] * 5}  # 15 s / (1 s + 2 s)
    assert "".join(calls) == "ab" + "ab" * 5


def test_a_fast_work_is_repeated_for_a_quarter_of_a_second(clock, interrupt):
    calls = []
    times = in_turns({"a": clock.work(2**-10, calls)}, Budget(100.0, interrupt), share=1.0)
    assert times == {"a": [2**-10] * 4}  # 1 s / 0.25 s


def test_after_the_budget_only_the_fewest_rounds_are_measured(clock, interrupt):
    times = in_turns({"a": clock.work(10.0, [])}, Budget(1.0, interrupt), share=100.0)
    assert times == {"a": [10.0] * MIN_ROUNDS}


def test_ctrl_c_keeps_whole_rounds(clock, interrupt):
    calls = []
    slow = clock.work(1.0, calls, "a")

    def interrupted(count):
        calls.append("b")
        clock.now += 1.0
        if calls.count("b") == 3:  # the second round
            interrupt.store(signal.SIGINT)

    works = {"a": slow, "b": interrupted, "c": clock.work(1.0, calls, "c")}
    times = in_turns(works, Budget(100.0, interrupt), share=50.0)
    assert {name: len(rounds) for name, rounds in times.items()} == {"a": 1, "b": 1, "c": 1}
    assert "".join(calls) == "abcabcab"


def test_ctrl_c_in_the_first_round_raises(clock, interrupt):
    interrupt.store(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        in_turns({"a": clock.work(1.0, [])}, Budget(100.0, interrupt), share=50.0)
