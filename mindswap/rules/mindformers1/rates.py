"""Rule for learning rates and loss scales at which MindFormers stops."""

from collections.abc import Callable, Iterator
from typing import Any

from mindswap.config.findings import Finding, rule
from mindswap.config.nodes import is_int
from mindswap.config.problem import Level
from mindswap.rules.context import Context
from mindswap.rules.refusals import WITH_DOT, Refusal, find_refusals, is_number, is_positive, of_elements, with_dot
from mindswap.rules.values import Values

RATE, END = "lr_schedule.learning_rate", "lr_schedule.lr_end"
# Schedules that take the warm-up from `warmup_steps` or `warmup_ratio`, and those that end below their rate.
WARMING = (
    "ConstantWithCoolDownLR", "ConstantWarmUpLR", "LinearWithWarmUpLR", "CosineWithWarmUpLR",
    "CosineWithRestartsAndWarmUpLR", "PolynomialWithWarmUpLR", "WarmUpStableDecayLR",
)  # fmt: skip
FALLING = ("PolynomialWithWarmUpLR", "WarmUpStableDecayLR")


def _warms(v: Values) -> bool:
    return v("lr_schedule.type") in WARMING


def _fixed_warmup(v: Values) -> bool:
    """Return whether the warm-up is a number of steps from the file."""
    return _warms(v) and v("lr_schedule.warmup_ratio") is None and not v("lr_schedule.warmup_epochs")


def _wrong_number(name: str, key: str) -> Refusal:
    """Return the refusal of a value of `lr_schedule` that is no number."""
    path = f"lr_schedule.{key}"
    return Refusal(
        f"rate-{name}",
        path,
        lambda v: _warms(v) and v(path) is not None and not is_number(v(path)),
        "MindFormers takes a number",
        WITH_DOT,
        lambda v: with_dot(v(path)),
    )


def _annealing(kind: str, key: str) -> Refusal:
    """Return the refusal of a period of an annealing schedule."""
    path = f"lr_schedule.{key}"
    return Refusal(
        f"annealing-{key}",
        path,
        lambda v: v("lr_schedule.type") == kind and v(path) is not None and not is_positive(v(path)),
        f"{kind} takes a positive integer",
        "an integer, 1 or more",
        "{key}: 1",
    )


def _loss_scale(name: str, is_wrong: Callable[[Any, Any], bool]) -> Refusal:
    """Return the refusal of the windows of an adaptive loss scale: `is_wrong` of the larger and the smaller one."""
    path = "runner_wrapper.scale_sense"
    return Refusal(
        f"loss-scale-{name}",
        path,
        lambda v: (
            v(f"{path}.type") == "AdaptiveLossScaleUpdateCell"
            and is_wrong(v(f"{path}.max_scale_window"), v(f"{path}.min_scale_window"))
        ),
        "AdaptiveLossScaleUpdateCell takes integers, 0 < min_scale_window < max_scale_window",
        fix="max_scale_window: 1000, min_scale_window: 20",
    )


REFUSALS = (
    Refusal(
        "rate-type",
        "optimizer.learning_rate",
        lambda v: isinstance(v("optimizer.learning_rate"), dict) and v("optimizer.learning_rate.type") is None,
        "a schedule needs its type",
        fix="type: CosineWithWarmUpLR",
    ),
    _wrong_number("value", "learning_rate"),
    _wrong_number("end", "lr_end"),
    _wrong_number("warmup-start", "warmup_lr_init"),
    _wrong_number("warmup-ratio", "warmup_ratio"),
    Refusal(
        "rate-below-end",
        END,
        lambda v: v("lr_schedule.type") in FALLING and v(RATE) <= v(END, 1e-7),
        lambda v: f"it is not below learning_rate, {v(RATE)}",
        fix="{key}: 0.0",
    ),
    Refusal(
        "warmup-missing",
        "lr_schedule.type",
        lambda v: _fixed_warmup(v) and v("lr_schedule.warmup_steps") is None,
        "neither warmup_steps nor warmup_ratio is set",
        fix="warmup_ratio: 0.0",
    ),
    Refusal(
        "warmup-steps",
        "lr_schedule.warmup_steps",
        lambda v: (
            _fixed_warmup(v)
            and v.is_written("lr_schedule.warmup_steps")
            and (not is_int(v("lr_schedule.warmup_steps")) or v("lr_schedule.warmup_steps") < 0)
        ),
        "MindFormers takes an integer of 0 or more",
        "an integer, 0 or more",
        "{key}: 0",
    ),
    Refusal(
        "warmup-ratio",
        "lr_schedule.warmup_ratio",
        lambda v: _warms(v) and not 0 <= v("lr_schedule.warmup_ratio") <= 1,
        "MindFormers takes 0.0 to 1.0",
        "0.0 to 1.0",
        "{key}: 0.01",
    ),
    Refusal(
        "warmup-epochs",
        "lr_schedule.warmup_epochs",
        lambda v: (
            bool(v("lr_schedule.warmup_epochs"))
            and (not is_int(v("lr_schedule.warmup_epochs")) or v("lr_schedule.warmup_epochs") < 0)
        ),
        "MindFormers takes an integer of 0 or more",
        "an integer, 0 or more",
        "{key}: 1",
    ),
    Refusal(
        "warmup-epochs-ratio",
        "lr_schedule.warmup_epochs",
        lambda v: is_positive(v("lr_schedule.warmup_epochs")) and not v("lr_schedule.warmup_ratio"),
        "MindFormers takes it with warmup_ratio only",
        fix="warmup_ratio: 0.01, or delete it",
    ),
    _annealing("CosineAnnealingLR", "t_max"),
    _annealing("CosineAnnealingWarmRestarts", "t_0"),
    _annealing("CosineAnnealingWarmRestarts", "t_mult"),
    of_elements(
        name="grouped-rates",
        at="grouped_lr_schedule.grouped",
        is_wrong=lambda group: not isinstance(group.get("params"), list) or not group["params"],
        message="a group needs a list of names, params",
        allowed="a list of patterns of parameters",
        fix="params: ['.*']",
        key="params",
    ),
    Refusal(
        "layer-scale",
        "layer_scale",
        lambda v: bool(v("layer_scale")),
        "MindFormers 1.9 does not scale layers",
        "False",
        "{key}: False",
    ),
    Refusal(
        "scaled-rate",
        "lr_schedule.learning_rate",
        lambda v: (
            bool(v("lr_scale"))
            and v("lr_scale_factor", 256) is not None
            and not isinstance(v(RATE), float)
            and v.is_written(RATE)
        ),
        "with lr_scale MindFormers takes a float",
        WITH_DOT,
        lambda v: with_dot(v(RATE)),
    ),
    Refusal(
        "scale-factor",
        "lr_scale_factor",
        lambda v: bool(v("lr_scale")) and not is_number(v("lr_scale_factor", 256)),
        "MindFormers takes a number",
        "a number",
        "{key}: 256",
    ),
    Refusal(
        "clip-norm",
        "runner_wrapper.max_grad_norm",
        lambda v: v("runner_wrapper.max_grad_norm") is not None and not v("runner_wrapper.max_grad_norm") > 0,
        "gradients are clipped to a norm above 0",
        "above 0.0",
        "{key}: 1.0",
    ),
    _loss_scale("windows", lambda high, low: low <= 0 or high <= low),
    _loss_scale("window-types", lambda high, low: not (is_int(high) and is_int(low))),
)


@rule(Level.ERROR)
def rate_refused(context: Context) -> Iterator[Finding]:
    """Learning rates, warm-up and loss scales at which MindFormers stops.

    Numbers such as 1e-5 are among them: without a dot they are strings in YAML 1.1. All conditions are in
    docs/internals/upstream_checks.md, each with the place that tests it.

    PASS: lr_schedule: {type: CosineWithWarmUpLR, learning_rate: 1.e-5, warmup_ratio: 0.01}
    FAIL: lr_schedule: {type: CosineWithWarmUpLR, learning_rate: 1e-5, warmup_ratio: 0.01}
    """
    yield from find_refusals(context, REFUSALS)
