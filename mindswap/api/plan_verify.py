"""A plan held against the compiler before it is handed out, in a process of its own and within a time."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from mindswap.api.plan import StepPlan
from mindswap.api.plan_2x import is_2x
from mindswap.api.recorded import is_trace_path
from mindswap.errors import LaunchError
from mindswap.training.proof.children import ask

VERIFY_LIMIT_S = 300.0


@dataclass(frozen=True)
class PlanVerdict:
    """What the compiler makes of a plan."""

    is_as_asked: bool | None  # None where nobody could tell
    text: str  # one line for people

    @property
    def is_refused(self) -> bool:
        """The compiler does something else."""
        return self.is_as_asked is False


def verify_plan(plan: StepPlan, use_cache: bool = True, limit_s: float = VERIFY_LIMIT_S) -> PlanVerdict:
    """Whether the compiled network does what a plan asks, all of it and no more.

    Args:
        plan: one that fits.
        use_cache: False compiles again and keeps nothing.
        limit_s: the compile may take so long; after that nobody can tell.
    """
    path = plan.step.path
    if path is None or is_trace_path(str(path)) or is_2x(plan.step.document):
        return PlanVerdict(None, "not verified: there is no network to compile")
    with tempfile.TemporaryDirectory(prefix="mindswap_plan_") as folder:
        file = Path(folder, path.name)
        plan.save(file)
        try:
            answer = ask(["verify", "--json", str(file), *([] if use_cache else ["--no-cache"])], limit_s)
        except LaunchError as error:
            return PlanVerdict(None, f"not verified: {error}; mindswap verify takes the time that it needs")
    if answer.data is None:
        return PlanVerdict(None, f"not verified: {answer.error.partition(chr(10))[0]}")
    if answer.data["ok"]:
        return PlanVerdict(True, "verified: the compiled graph does what the plan asks")
    faults = dict.fromkeys(text for layer in answer.data["layers"] for text in _faults_of(layer))
    return PlanVerdict(False, "; ".join(["the compiled graph does NOT do what the plan asks", *faults]))


def _faults_of(layer: dict[str, object]) -> list[str]:
    """What `verify --json` says against a layer."""
    found = [f"{key.replace('_', ' ')}: {name}" for key in ("missing", "unasked", "wrong_prefetch", "one_way")
             for name in _list(layer[key])]  # fmt: skip
    return found + [f"without effect: {entry['entry']}" for entry in _list(layer["without_effect"])]


def _list(value: object) -> list[dict[str, str]]:
    assert isinstance(value, list)
    return value
