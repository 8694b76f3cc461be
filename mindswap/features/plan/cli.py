"""Command line of `mindswap plan`."""

import argparse
import gc
import stat
from pathlib import Path

from mindswap.command_line.options import (
    add_device,
    add_expert_skew,
    add_html,
    add_json,
    add_no_cache,
    device_overrides,
    number_from,
    optional_path,
    refuse_given,
    reject_overwrite_without_output,
)
from mindswap.command_line.progress import SearchBar
from mindswap.config.source import load_document
from mindswap.errors import PlanError
from mindswap.features.plan import (
    budget_warning,
    check_plan_writable,
    objective_warning,
)
from mindswap.features.plan.batches_cli import (
    finish_plan,
    has_batch_options,
    numbers_or_auto,
    reject_conflicting_options,
    run_batches,
)
from mindswap.features.plan.make_plans import make_plans
from mindswap.features.plan.pynative import cards_note, is_model_2x, with_swappable_stages
from mindswap.features.plan.report import plan_to_json
from mindswap.features.plan.states import is_states_pin
from mindswap.features.plan.states_planner import StatesPlanner
from mindswap.features.plan.sweep_cli import run_sweep
from mindswap.features.plan.trainer_plans import (
    format_trainer_attempts,
    trainer_attempts_to_json,
)
from mindswap.features.simulate import LoadedStep, outside_line
from mindswap.features.step import load_step
from mindswap.features.step_2x import is_2x, with_cards
from mindswap.files import refuse_existing, require_folders
from mindswap.planner.explain import explain_plan
from mindswap.planner.pins import read_pin
from mindswap.planner.problem import Allow, Objective
from mindswap.report.problems import answer_text
from mindswap.steps.recorded import is_trace_path
from mindswap.system.streams import print_data, print_text

OPTIONS_NOT_2X = "--sweep --explain --plot --objective=memory --expert-skew --simple --pin --dry-run"
WRITABLE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


EPILOG = """\
examples:
  mindswap plan llama2_7b.yaml --memory 54GiB
  mindswap plan llama2_7b.yaml --memory 40GiB -o planned.yaml --explain
  mindswap plan llama2_7b.yaml --memory 40GiB --allow recompute --in-place
  mindswap plan llama2_7b.yaml --memory 40GiB --simple     # at most 6 entries, and what that costs
  mindswap plan llama2_7b.yaml --memory 40GiB --pin 'attention\\.flash_attention=swap' --pin 'feed_forward=keep'
  mindswap plan llama2_7b.yaml --memory 40GiB --pin optimizer=keep     # optimizer states stay on the card
  mindswap plan llama2_7b.yaml --memory 40GiB --dry-run    # repeat until a dry run fits
  mindswap plan llama2_7b.yaml --objective memory          # least memory at almost no cost in time
  mindswap plan llama2_7b.yaml --sweep --plot pareto.png   # step time against memory, with common settings as points
  mindswap plan config_2x.yaml --trace step.json --memory 40GiB -o planned.yaml    # MindFormers 2.x
  mindswap plan llama2_7b.yaml --batch-size auto -o best.yaml       # other micro-batch sizes, same global batch
  mindswap plan llama2_7b.yaml --strategy auto --cards 8 -o best.yaml    # data, tensor, pipeline, expert parallel
  mindswap plan llama2_13b.yaml --stages auto -o best.yaml               # other numbers of layers per stage
  mindswap plan --json llama2_7b.yaml --memory 40GiB | jq '.step_time_ns'

Before it is written, a plan is verified as by `mindswap verify`, in a compile of 5 minutes at most; a plan that the
compiler does not follow is not written. All times and sizes are simulated. Exit code 1 if nothing fits; the
output then names the smallest memory that would.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the arguments and options of the command."""
    parser.add_argument(
        "config", metavar="CONFIG", help="YAML of MindFormers, or a step that `mindswap trace` recorded (.json)"
    )
    either = parser.add_mutually_exclusive_group()
    either.add_argument(
        "-o", "--output", metavar="FILE", type=optional_path, help="file for the configuration with the plan"
    )
    either.add_argument("--in-place", action="store_true", help="change CONFIG itself")
    parser.add_argument("--overwrite", action="store_true", help="replace FILE")
    parser.add_argument("--trace", metavar="FILE", help="recorded step of the network, for a CONFIG of MindFormers 2.x")
    parser.add_argument(
        "--allow", metavar="swap,recompute", default="swap,recompute", help="what the plan may use; default is both"
    )
    parser.add_argument(
        "--objective", default="time", choices=[objective.value for objective in Objective], help="default is time"
    )
    parser.add_argument(
        "--simple",
        action="store_true",
        help=(
            "at most 6 entries: full layers, or the cells of attention and feed-forward, with one backward_prefetch; "
            "also reports the cost against the unrestricted plan"
        ),
    )
    parser.add_argument(
        "--no-verify",
        action="store_true",
        help="write the plan without checking it in the compiled graph, with MindFormers 2.x without a dry run",
    )
    parser.add_argument(
        "--pin",
        metavar="PATTERN=swap|recompute|keep",
        default=[],
        action="append",
        help=(
            "fix the decision for operators or cells in all layers: swap (swap:12 sets backward_prefetch, default 10), "
            "recompute, or keep; optimizer=swap or optimizer=keep for optimizer states; can be repeated"
        ),
    )
    parser.add_argument("--explain", action="store_true", help="explain why these operators are swapped or recomputed")
    parser.add_argument("--verbose", action="store_true", help="also print the number of simulations of the search")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help=("dry run the plan on MindSpore's Ascend backend, and replan until it fits, at most three times"),
    )
    parser.add_argument(
        "--sweep",
        action="store_true",
        help="plan for many budgets, from keeping all activations down to the minimum memory",
    )
    parser.add_argument(
        "--batch-size",
        metavar="auto|N,...",
        type=numbers_or_auto,
        help="plan for other micro-batch sizes, and write the fastest; the global batch stays the same",
    )
    parser.add_argument(
        "--micro-batches",
        metavar="auto|N,...",
        type=numbers_or_auto,
        help="plan for other numbers of micro-batches per step, and write the fastest; the global batch stays the same",
    )
    parser.add_argument(
        "--any-global-batch",
        action="store_true",
        help="with --batch-size and --micro-batches: the global batch may change",
    )
    parser.add_argument(
        "--strategy",
        choices=["auto"],
        help=(
            "plan for all combinations of data, tensor, pipeline, expert and sequence parallel that MindFormers "
            "accepts, and write the fastest; the global batch stays the same, without --batch-size the micro-batch, too"
        ),
    )
    parser.add_argument(
        "--stages",
        choices=["auto"],
        help="plan for other numbers of layers per pipeline stage (offset), and write the fastest",
    )
    parser.add_argument(
        "--cards",
        metavar="N",
        type=number_from(1),
        help="with --strategy or MindFormers 2.x: number of cards of the training; default is that of CONFIG",
    )
    parser.add_argument(
        "--jobs",
        metavar="N",
        type=number_from(1, 256),
        default=1,
        help="parallel processes for --batch-size, --micro-batches, --strategy and --stages (1)",
    )
    parser.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="use all CPUs of a Ray cluster at this address, or auto (pip install '.[ray]' in a checkout)",
    )
    add_html(parser)
    parser.add_argument(
        "--plot", metavar="FILE", type=optional_path, help="write a picture of the step before and after, or of --sweep"
    )
    add_no_cache(parser)
    add_json(parser)
    add_expert_skew(parser)
    add_device(parser)


def run(args: argparse.Namespace) -> int:
    """Plan one configuration; 1 if nothing fits."""
    allowed = _allowed(args.allow)
    _refuse_early(args)
    pins = tuple(map(read_pin, args.pin))
    target = args.output or (args.config if args.in_place else None)
    objective = Objective(args.objective)
    if has_batch_options(args):
        return run_batches(args, allowed, target)
    step = _load(args, allowed, target is not None)
    with SearchBar() as bar:
        planner = StatesPlanner(step, allowed, pins)
        if args.sweep:
            return run_sweep(args, step, planner, objective, bar)

        attempts, trained, step_plan = make_plans(args, step, planner, objective, bar)
    gc.freeze()  # data of the search is kept until the end; a collection of it takes half a second
    warnings = budget_warning(step, step_plan.problem.budget_bytes), objective_warning(step_plan.plan, objective)
    sharding = cards_note(step.document, args.cards)
    notes = [note for note in (*warnings, sharding, *step.model.caveats, *planner.notes) if note]
    # The plan is printed before files are written, so that an error there does not lose a long search.
    if not args.json:
        remarks = [outside_line(step.model, step.device), *(f"note: {note}" for note in notes)]
        remarks = [line for line in remarks if line]
        print_text("\n".join([step_plan.format(args.verbose), *([""] if remarks else []), *remarks]))
    following = f"next: mindswap {'check' if is_2x(step.document) else 'dryrun'} {target}"
    if trained and not args.json:
        print_text(f"\n{format_trainer_attempts(trained)}")
    is_refuted = bool(trained and not trained[-1].fits)
    target = None if is_refuted else target
    data, step_plan, is_ok = finish_plan(args, step_plan, attempts, target, f"written: {target}; {following}")
    data |= {"dry_runs": trainer_attempts_to_json(trained)} if trained else {}
    is_ok = is_ok and not is_refuted
    plan = step_plan.plan
    explanation = explain_plan(step.model, plan) if args.explain and plan.fits else []
    if args.json:
        data = plan_to_json(plan, step.device.name, step_plan.sections) | {"notes": notes} | data
        data |= {"optimizer_states": step_plan.states.to_json()} if step_plan.states is not None else {}
        data |= {"explanation": explanation} if args.explain else {}
        print_data(answer_text("plan", data, is_ok))
    elif explanation:
        print_text("\n".join(["", *explanation]))
    if plan.fits and args.html:
        step_plan.run().save_html(args.html)
    if plan.fits and args.plot:
        step_plan.save_plot(args.plot)
    return 0 if is_ok else 1


def _refuse_early(args: argparse.Namespace) -> None:
    """Refuse invalid combinations of options before anything is compiled."""
    if args.simple:
        refuse_given(args, "--objective=memory", "--simple: not with {}", "--memory SIZE, or leave one out")
        refuse_given(args, "--pin", "--simple: not with {}", "leave one out")
    if args.sweep:
        single_plan_options = "-o --in-place --html --explain --dry-run --simple --objective=memory"
        single_plan_options += "" if all(map(is_states_pin, args.pin)) else " --pin"
        refuse_given(args, single_plan_options, "--sweep makes many plans: choose one with --memory for {}", "")
    reject_conflicting_options(args)
    reject_overwrite_without_output(args)
    if args.in_place and Path(args.config).exists() and not Path(args.config).stat().st_mode & WRITABLE:
        raise PlanError(f"--in-place: {args.config} is read-only\n    fix:     chmod u+w {args.config}, or -o FILE")
    require_folders(args.output, args.html, args.plot)
    if args.output and not args.overwrite:
        refuse_existing([args.output])


def _load(args: argparse.Namespace, allowed: Allow, is_written: bool) -> LoadedStep:
    """Load the step of the configuration; for a file of MindFormers 2.x that of its trace."""
    document = None if is_trace_path(args.config) else load_document(args.config)
    if document is not None and is_2x(document):
        refuse_given(args, OPTIONS_NOT_2X, "{}: not for files of MindFormers 2.x", "leave it out")
        if args.trace is not None:
            refuse_given(args, "--cards", "{}: the step of --trace has its micro-batches", "leave one out")
        document = with_cards(with_swappable_stages(document, allowed), args.cards)
        return load_step(document, args.device, device_overrides(args), not args.no_cache, trace=args.trace)
    if args.trace is not None:
        raise PlanError(f"--trace: is for files of MindFormers 2.x\n    fix:     mindswap plan {args.trace}")
    if document is not None and is_written:
        check_plan_writable(document)
    config = document or args.config
    step = load_step(config, args.device, device_overrides(args), not args.no_cache, expert_skew=args.expert_skew)
    if is_model_2x(step.model):
        refuse_given(args, OPTIONS_NOT_2X, "{}: not for steps of MindFormers 2.x", "leave it out")
    return step


def _allowed(text: str) -> Allow:
    """Means that the plan may use."""
    names = {name.strip() for name in text.split(",") if name.strip()}
    if not names or names - {"swap", "recompute"}:
        raise PlanError(f"--allow {text}: write swap, recompute or swap,recompute")
    return Allow("swap" in names, "recompute" in names)
