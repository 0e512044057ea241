"""Declaration of the family `oscillator/`, with a report for `purejaxppo evaluate`."""

from purejaxppo.envs.adapters.oscillator.report import report
from purejaxppo.envs.adapters.oscillator.task import OPTIONS, make, task_names
from purejaxppo.envs.families import Family

FAMILY = Family(
    about="neural oscillators to desynchronise",
    tasks=task_names,
    make_task=make,
    options=OPTIONS,
    report=report,
)
