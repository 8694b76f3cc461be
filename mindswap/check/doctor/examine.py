"""All findings of all checks."""

from mindswap.check.doctor.machine import find_in_job, find_in_machine
from mindswap.check.doctor.model import Diagnosis, MachineFacts
from mindswap.check.doctor.software import find_in_environment, find_in_software
from mindswap.config.problem import Level

_CHECKS = (find_in_software, find_in_environment, find_in_machine, find_in_job)


def examine(facts: MachineFacts) -> tuple[Diagnosis, ...]:
    """What is not as it should be, errors first."""
    found = [finding for check in _CHECKS for finding in check(facts)]
    return tuple(sorted(found, key=lambda finding: finding.severity is not Level.ERROR))
