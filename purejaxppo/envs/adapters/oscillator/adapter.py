"""Declaration of the family `oscillator/`, with a report for `purejaxppo evaluate`."""

from purejaxppo.envs.adapters.oscillator.models import MODELS
from purejaxppo.envs.adapters.oscillator.report import report
from purejaxppo.envs.adapters.oscillator.task import OPTIONS, make
from purejaxppo.envs.families import Family

FAMILY = Family(
    about="neural oscillators to desynchronise",
    tasks=lambda: list(MODELS),
    make_task=make,
    options=OPTIONS,
    report=report,
)
