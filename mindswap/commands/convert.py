r"""Rewrite swap and recompute settings: MindFormers 1.9 or 2.x, counts per stage, Megatron-LM; nothing is run.

examples:
  mindswap convert old.yaml --to index -o new.yaml      # counts per stage (swap off) -> layer indices (swap on)
  mindswap convert old.yaml --to 2.x -o new.yaml        # swap and recompute in the sections of MindFormers 2.x
  mindswap convert old.yaml --to 2.x --trace step.json  # the same, by the tensors of a recorded step
  mindswap convert --from megatron --num-layers 32 --recompute-activations
  mindswap convert --from megatron --recompute-granularity full --recompute-method block --recompute-num-layers 2 \
      --pipeline-model-parallel-size 4 llama2_7b.yaml -o new.yaml
  mindswap convert --from megatron --from-args pretrain_gpt.sh llama2_7b.yaml -o new.yaml

Comments and order of CONFIG stay. A launch script is read, not run; options given here go before those in it.
"""

import argparse
import sys
from pathlib import Path

from mindswap.api.convert import to_index_form
from mindswap.check.check import check_document
from mindswap.commands.convert_megatron import (
    FAMILIES,
    Request,
    Result,
    Rewritten,
    convert_megatron,
    known_trees,
    num_layers_of,
    target_of,
)
from mindswap.commands.convert_versions import VERSIONS, convert_versions
from mindswap.commands.options import (
    MOST_LAYERS,
    add_common,
    add_target_arguments,
    number_from,
    reject_overwrite_without_output,
)
from mindswap.config.nodes import Document, to_data
from mindswap.config.parse import parse_document
from mindswap.config.problem import Level, Problem, find_errors, sort_problems
from mindswap.config.render import COMMAND_LINE
from mindswap.config.sections import rewrite_section
from mindswap.config.source import BASE_CONFIG, load_document
from mindswap.errors import LaunchError, PolicyError
from mindswap.files import require_folders, write_new
from mindswap.policy.convert import rewrite_for_swap
from mindswap.policy.megatron.options import OPTIONS, OptionKind
from mindswap.policy.mindformers_2x.tables import refuse_pynative
from mindswap.policy.read import find_num_layers
from mindswap.report.problems import answer_text, format_problems, problems_to_data


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("config", metavar="CONFIG", nargs="?", help="YAML of MindFormers")
    parser.add_argument(
        "--to", choices=("index", "2.x", "1.9"), help="form of recompute_config, or version of MindFormers"
    )
    parser.add_argument("--from", dest="source", choices=("megatron",), help="take the settings from its options")
    parser.add_argument(
        "--ops-per-layer",
        type=number_from(1, MOST_LAYERS),
        metavar="N",
        help="operators of a layer in backward, for distances between versions; default is a table of the model",
    )
    parser.add_argument(
        "--trace",
        metavar="FILE",
        help="between versions: a step of the same model (mindswap trace); settings that move the same tensors",
    )
    add_target_arguments(parser, "write here; default is the terminal")
    add_common(parser, "--json")
    megatron = parser.add_argument_group("with --from megatron")
    megatron.add_argument("--from-args", metavar="FILE", help="a launch script, or a file with options; - reads stdin")
    megatron.add_argument("--family", choices=sorted(FAMILIES), default="llama", help="operator names without CONFIG")
    megatron.add_argument(
        "--backward-prefetch",
        type=number_from(1, MOST_LAYERS),
        default=1,
        metavar="N",
        help="of what is offloaded; default 1",
    )
    for option in OPTIONS.values():
        if option.kind is OptionKind.FLAG:
            megatron.add_argument(option.name, action="store_true", help=option.help)
        else:
            count = "+" if option.kind is OptionKind.NAMES else None
            name = "|".join(option.choices) or ("NAME" if option.kind is OptionKind.NAMES else "N")
            megatron.add_argument(option.name, nargs=count, metavar=name, help=option.help)


def run(args: argparse.Namespace) -> int:
    """Convert one configuration; 1 if the result does not pass `mindswap check`; it is written all the same."""
    request = _read_request(args)
    require_folders(args.output)
    reject_overwrite_without_output(args)
    if args.trace and args.to not in VERSIONS:
        raise LaunchError("--trace: is for --to 2.x and --to 1.9")
    made = convert_versions(args, request) if args.to in VERSIONS else _convert_sections(args, request)
    target = target_of(args)
    if target:
        write_new(target, made.text, overwrite=args.overwrite or args.in_place)
    has_errors = bool(find_errors(made.problems))
    if args.json:
        answer = {"written": target, "text": made.text, **made.data, **problems_to_data(made.problems)}
        print(answer_text("convert", answer, not has_errors))
        return int(has_errors)
    if not target:
        print(made.text, end="" if made.text.endswith(("\n", "\r")) else "\n")
    if made.problems:
        print(format_problems(made.problems), file=sys.stderr)
    if target:
        print(f"written: {target}; next: mindswap check {target}")
    return int(has_errors)


def _convert_sections(args: argparse.Namespace, request: Request) -> Rewritten:
    """From counts per stage, layer indices or options of Megatron-LM: sections of MindFormers 1.9."""
    refuse_pynative(request.document)
    result = convert_megatron(args, request) if args.source == "megatron" else _between_forms(args, request)
    text = request.text
    if result.sections.get("swap_config", {}).get("swap") is True and request.document.root is not None:
        own = parse_document(text.encode("utf-8", "surrogatepass"), request.file)
        text = rewrite_for_swap(text, own, request.document)
    for name, value in result.sections.items():
        text = rewrite_section(text, name, value, result.comments.get(name), request.file)
    problems = result.problems
    if request.document.root is not None:  # without CONFIG there is too little of it to check
        written = parse_document(text.encode("utf-8", "surrogatepass"), target_of(args) or "the result")
        problems = (*problems, *check_document(written, result.num_layers).problems)
    return Rewritten(text, sort_problems(problems), {"sections": result.sections})


def _read_request(args: argparse.Namespace) -> Request:
    """The file, after looking whether the options go together."""
    given = [name for name, option in OPTIONS.items() if getattr(args, option.field) and name != "--num-layers"]
    if args.source is None and args.to is None:
        raise LaunchError("say what to do: --to index, 2.x or 1.9, or --from megatron")
    if args.source is not None and args.to is not None:
        raise LaunchError("--to has no meaning with --from megatron: the result is in layer indices")
    if args.source is None and (args.config is None or given or args.from_args):
        what = "CONFIG is missing" if args.config is None else f"{(*given, '--from-args')[0]} needs --from megatron"
        raise LaunchError(what)
    if args.config is None:
        if args.in_place:
            raise LaunchError("--in-place needs CONFIG")
        return Request("", Document(COMMAND_LINE, None), COMMAND_LINE)
    document = load_document(args.config)
    if document.problems:
        raise PolicyError(document.problems)
    text = Path(args.config).read_bytes().decode("utf-8")
    own = parse_document(text.encode(), args.config)
    if own.get(BASE_CONFIG) is not None:
        _refuse_inherited(own, document)
        if args.output and args.output.resolve().parent != Path(args.config).resolve().parent:
            raise LaunchError(f"{args.config} is based on other files ({BASE_CONFIG}); write the result beside it")
    return Request(text, document, args.config)


def _refuse_inherited(own: Document, whole: Document) -> None:
    """A section that stands in another file cannot be replaced in this one: MindFormers merges the two."""
    for section in ("swap_config", "recompute_config", "mindswap"):
        here, merged = own.get(section), whole.get(section)
        if merged is not None and (here is None or to_data(here) != to_data(merged)):
            message = f"{section}: a part of it stands in another file ({BASE_CONFIG})"
            fix = f"copy {section} into {own.file}"
            raise PolicyError([Problem(merged.location, "convert", Level.ERROR, message, fix=fix)])


def _between_forms(args: argparse.Namespace, request: Request) -> Result:
    num_layers = num_layers_of(args, request.document, find_num_layers(request.document))
    checked = check_document(request.document, num_layers)
    trees = known_trees(args.config, request.document, checked)
    converted = to_index_form(request.document, num_layers, trees)
    comment = "layer indices, from counts per pipeline stage (mindswap convert --to index)"
    return Result(converted.sections, converted.problems, {"recompute_config": comment}, num_layers)
