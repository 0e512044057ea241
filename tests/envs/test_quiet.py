"""Silencing simulators that print and warn, in one thread and in several."""

import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest

from purejaxppo.envs.quiet import quiet

pytestmark = pytest.mark.toy


def test_prints_and_named_warnings_are_discarded_and_others_are_not(capsys):
    with pytest.warns(UserWarning, match="new") as record, quiet(("old", UserWarning)):
        print("noise")
        warnings.warn("old", UserWarning, stacklevel=1)
        warnings.warn("new", UserWarning, stacklevel=1)
    print("after")
    assert [str(warning.message) for warning in record] == ["new"]
    assert capsys.readouterr().out == "after\n"


def test_other_threads_can_print_and_their_streams_keep_working(capsys):
    with ThreadPoolExecutor(1) as other:
        with quiet():
            kept = other.submit(lambda: sys.stdout).result()
            other.submit(print, "meanwhile").result()
            print("noise")
        other.submit(print, "kept", file=kept).result()
    assert capsys.readouterr().out == "meanwhile\nkept\n"


def test_one_thread_at_a_time_changes_the_process():
    stdout, filters, entered = sys.stdout, list(warnings.filters), threading.Event()

    def wait_and_enter():
        with quiet(("old", UserWarning)):
            entered.set()

    with ThreadPoolExecutor(1) as other:
        with quiet(("other", UserWarning)):
            second = other.submit(wait_and_enter)
            assert not entered.wait(0.2)
        second.result()
    assert sys.stdout is stdout
    assert warnings.filters == filters
