"""Command line of `mindswap convert`."""

import argparse
import shlex

from mindswap.command_line.options import (
    MAX_LAYERS,
    add_json,
    answer,
    number_from,
    optional_path,
    reject_overwrite_without_output,
)
from mindswap.config.problem import find_errors
from mindswap.errors import LaunchError
from mindswap.features.convert import FAMILIES, MegatronSource, convert_config
from mindswap.features.convert.versions import VERSIONS
from mindswap.files import require_folders, write_new
from mindswap.policy.formats.megatron.options import OPTIONS, OptionKind
from mindswap.report.problems import format_problems, problems_to_data
from mindswap.system.streams import print_text

SCRIPT_ENDINGS = (".sh", ".bash")
EPILOG = """\
examples:
  mindswap convert old.yaml --to index -o new.yaml      # counts per stage (swap off) -> layer indices (swap on)
  mindswap convert old.yaml --to 2.x -o new.yaml        # swap and recompute in the sections of MindFormers 2.x
  mindswap convert old.yaml --to 2.x --trace step.json  # the same, by the tensors of a recorded step
  mindswap convert --from megatron --num-layers 32 --recompute-activations
  mindswap convert --from megatron --recompute-granularity full --recompute-method block --recompute-num-layers 2 \\
      --pipeline-model-parallel-size 4 llama2_7b.yaml -o new.yaml
  mindswap convert --from megatron --from-args pretrain_gpt.sh llama2_7b.yaml -o new.yaml

Comments and the order of keys in CONFIG are kept. A launch script is read, not run; options given here take precedence.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the arguments and options of the command."""
    parser.add_argument("config", metavar="CONFIG", nargs="?", help="YAML of MindFormers")
    parser.add_argument(
        "--to", choices=("index", "2.x", "1.9"), help="form of recompute_config, or version of MindFormers"
    )
    parser.add_argument(
        "--from", dest="source", choices=("megatron",), help="take the settings from options of Megatron-LM"
    )
    parser.add_argument(
        "--ops-per-layer",
        metavar="N",
        type=number_from(1, MAX_LAYERS),
        help=(
            "backward operators of a layer, to convert prefetch distances between versions; "
            "default is the table of the model"
        ),
    )
    parser.add_argument(
        "--trace",
        metavar="FILE",
        help="between versions: a recorded step of the same model (mindswap trace); the result swaps the same tensors",
    )
    destination = parser.add_mutually_exclusive_group()
    destination.add_argument(
        "-o", "--output", metavar="FILE", type=optional_path, help="output file; default is the terminal"
    )
    destination.add_argument("--in-place", action="store_true", help="change CONFIG itself")
    parser.add_argument("--overwrite", action="store_true", help="replace FILE")
    add_json(parser)
    megatron = parser.add_argument_group("with --from megatron")
    megatron.add_argument("--from-args", metavar="FILE", help="a launch script, or a file with options; - reads stdin")
    megatron.add_argument(
        "--family",
        default="llama",
        choices=sorted(FAMILIES),
        help="model family whose operator names are used without CONFIG",
    )
    megatron.add_argument(
        "--backward-prefetch",
        metavar="N",
        type=number_from(1, MAX_LAYERS),
        default=1,
        help="backward_prefetch of offloaded activations; default 1",
    )
    for name, option in OPTIONS.items():
        if option.kind is OptionKind.FLAG:
            megatron.add_argument(name, action="store_true", help=option.help)
        elif option.kind is OptionKind.NAMES:
            megatron.add_argument(name, metavar="NAME", nargs="+", help=option.help)
        else:
            megatron.add_argument(name, metavar="|".join(option.choices) or "N", help=option.help)


def run(args: argparse.Namespace) -> int:
    """Convert one configuration; 1 if the result does not pass `mindswap check`; it is written all the same."""
    option_values = {
        name: getattr(args, option.field) for name, option in OPTIONS.items() if getattr(args, option.field)
    }
    _refuse_unfit(args, [name for name in option_values if name != "--num-layers"])
    require_folders(args.output)
    reject_overwrite_without_output(args)
    target = str(args.output or (args.config if args.in_place else None) or "")
    if args.source is None:
        try:
            num_layers = number_from(1, MAX_LAYERS)(args.num_layers) if args.num_layers else None
        except argparse.ArgumentTypeError as error:
            raise LaunchError(f"--num-layers: {error}") from None
        converted = convert_config(args.config, args.to, target, num_layers, args.ops_per_layer, args.trace)
    else:
        words = {
            name: [] if value is True else [value] if isinstance(value, str) else value
            for name, value in option_values.items()
        }
        source = MegatronSource(words, args.from_args, args.family, args.backward_prefetch)
        converted = convert_config(args.config, source, target)
    if target:
        write_new(target, converted.text, overwrite=args.overwrite or args.in_place)
    has_errors = bool(find_errors(converted.problems))
    if args.json:
        data = {
            "written": target or None,
            "text": converted.text,
            **converted.data,
            **problems_to_data(converted.problems),
        }
        return answer(args, data, "", not has_errors)
    if not target:
        end = "" if converted.text.endswith(("\n", "\r")) else "\n"
        print(converted.text, flush=True, end=end)  # noqa: T201 YAML, which can hold no such characters
    if converted.problems:
        print_text(format_problems(converted.problems), is_message=True)
    if target:
        print_text(f"written: {target}; next: mindswap check {target}")
    return int(has_errors)


def _refuse_unfit(args: argparse.Namespace, of_megatron: list[str]) -> None:
    """Refuse options that do not go together."""
    if args.source is None and args.to is None:
        raise LaunchError("choose a conversion: --to index, 2.x or 1.9, or --from megatron")
    if args.source is not None and args.to is not None:
        raise LaunchError("--to has no meaning with --from megatron: the result is in layer indices")
    if args.source is None and (args.config is None or of_megatron or args.from_args):
        missing = f"{(*of_megatron, '--from-args')[0]} needs --from megatron"
        raise LaunchError("CONFIG is missing" if args.config is None else missing)
    if args.config is None and args.in_place:
        raise LaunchError("--in-place needs CONFIG")
    if str(args.config).endswith(SCRIPT_ENDINGS):
        raise LaunchError(f"CONFIG is a YAML; of a script: --from megatron --from-args {shlex.quote(args.config)}")
    if args.trace and args.to not in VERSIONS:
        raise LaunchError("--trace: is for --to 2.x and --to 1.9")
