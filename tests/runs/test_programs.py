"""The compiled functions of a run."""

import time

from support.runs import setup_of

from purejaxppo.runs.programs import Programs


def test_the_time_of_compilation_counts_from_the_start_of_tracing(make_config):
    """Programs of several CPU devices compile before the run waits for them."""
    programs = Programs(setup_of(make_config()))
    started = time.perf_counter()
    programs.begin()
    state = programs.init()
    programs.compile(state)
    passed, first = time.perf_counter() - started, programs.compile_seconds
    assert 0.01 < first <= passed and 0 < programs.init_seconds < passed
    programs.compile(state)  # it is compiled already
    assert programs.compile_seconds == first
    programs.close()
