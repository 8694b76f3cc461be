"""How much of the measured time of kernels a device's figures explain."""

import statistics
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from mindswap.simulator.cost.hardware import Device
from mindswap.simulator.cost.kernel_fit import Sample, can_measure, key_of
from mindswap.simulator.cost.profile import ProfiledKernel
from mindswap.simulator.cost.table import MeasuredKey, Measurement, operator_ns

# More wrong than right: times by the figures are off by more than this share of the time they are for.
ABSURD_PERMILLE = 500
WITHOUT_FIGURES = "without figures"


@dataclass(frozen=True)
class ClassTime:
    """One class of operators, or `WITHOUT_FIGURES`."""

    name: str  # of the class
    num_kernels: int  # runs
    measured_ns: int  # their time: each operator's middle, as often as it ran
    predicted_ns: int | None  # by the figures; None where they say nothing
    middle_error_permille: int | None  # middle over operators of how far they are off; None likewise


@dataclass(frozen=True)
class OperatorTime:
    """An operator, as it was measured and as the figures say."""

    measurement: Measurement
    predicted_ns: int

    @property
    def error_ns(self) -> int:
        """How far all its runs are off together."""
        return abs(self.predicted_ns - self.measurement.duration_ns) * self.measurement.count


@dataclass(frozen=True)
class Explained:
    """The figures against the profile."""

    classes: tuple[ClassTime, ...]  # by measured time, largest first; what the model has no figures for last
    operators: tuple[OperatorTime, ...]  # the worst first
    known_ns: int  # measured time of operators that the figures are for
    error_ns: int  # how far those are off together
    total_ns: int  # of all compute kernels
    others: tuple[tuple[str, int], ...]  # kernels without figures and their time, the largest first

    @property
    def explained_permille(self) -> int | None:
        """Share of all compute time that is explained: what is known, less the errors; None without kernels."""
        return max(0, self.known_ns - self.error_ns) * 1000 // self.total_ns if self.total_ns else None

    @property
    def is_absurd(self) -> bool:
        """Whether the figures are more wrong than right about the operators that they are for."""
        return self.error_ns * 1000 > ABSURD_PERMILLE * self.known_ns


def explain(kernels: Sequence[ProfiledKernel], samples: Sequence[Sample], device: Device) -> Explained:
    """Compare with the figures of a device: all compute kernels of a profile, and those of them whose work is known."""
    by_class: dict[str, list[OperatorTime]] = {}
    for sample in samples:
        found = OperatorTime(sample.measurement, operator_ns(sample.node, sample.work, device))
        by_class.setdefault(sample.kind.value, []).append(found)
    classes = sorted((_class_time(name, found) for name, found in by_class.items()), key=lambda c: -c.measured_ns)
    operators = [operator for found in by_class.values() for operator in found]
    known_ns = sum(entry.measured_ns for entry in classes)
    total_ns = sum(kernel.duration_ns for kernel in kernels)
    rest = ClassTime(
        WITHOUT_FIGURES, len(kernels) - sum(c.num_kernels for c in classes), max(0, total_ns - known_ns), None, None
    )
    return Explained(
        classes=(*classes, rest) if rest.num_kernels else tuple(classes),
        operators=tuple(sorted(operators, key=lambda o: (-o.error_ns, o.measurement.key.op))),
        known_ns=known_ns,
        error_ns=sum(operator.error_ns for operator in operators),
        total_ns=total_ns,
        others=_others(kernels, {sample.measurement.key for sample in samples}),
    )


def _others(kernels: Iterable[ProfiledKernel], known: Container[MeasuredKey]) -> tuple[tuple[str, int], ...]:
    times: dict[str, int] = {}
    for kernel in kernels:
        if not can_measure(kernel) or key_of(kernel) not in known:
            times[kernel.type] = times.get(kernel.type, 0) + kernel.duration_ns
    return tuple(sorted(times.items(), key=lambda entry: (-entry[1], entry[0])))


def _class_time(name: str, operators: Sequence[OperatorTime]) -> ClassTime:
    measured = [operator.measurement for operator in operators]
    errors = [
        abs(operator.predicted_ns - operator.measurement.duration_ns) * 1000 // operator.measurement.duration_ns
        for operator in operators
        if operator.measurement.duration_ns
    ]
    return ClassTime(
        name,
        sum(m.count for m in measured),
        sum(m.count * m.duration_ns for m in measured),
        sum(o.measurement.count * o.predicted_ns for o in operators),
        int(statistics.median(errors)) if errors else None,
    )
