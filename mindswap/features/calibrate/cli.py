"""Command line of `mindswap calibrate`."""

import argparse
from contextlib import ExitStack
from pathlib import Path

from tqdm import tqdm

from mindswap.command_line.options import add_json, answer
from mindswap.features.calibrate import calibrate_device
from mindswap.simulator.cost.device_file import DEFAULT_DEVICE, list_devices
from mindswap.simulator.profile.tables import Progress
from mindswap.system.streams import print_text

EPILOG = """\
examples:
  mindswap calibrate ./profile -o device.yaml
  mindswap calibrate ./profile/host_20260101_ascend_ms -o device.yaml --device atlas_800t_a2_376t
  mindswap calibrate ./PROF_000001_20260101 -o device.yaml
  mindswap calibrate ./profile -o device.yaml --json | jq '.figures'
  mindswap simulate llama2_7b.yaml --device device.yaml

PROFILE is the output_path of mindspore.Profiler or torch_npu.profiler, the folder of one rank in it, or an output
folder of msprof; all ranks in it are combined. Profile a few steps at profiler level 2: level 1 has no sizes of copies,
level 0 no shapes. Figures that the profile does not contain are taken from --device. Exit code 1, and no file, if the
profile contains no figure, or if the fitted figures do not reproduce its times.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the arguments and options of the command."""
    parser.add_argument("profile", metavar="PROFILE", type=Path, help="output folder of the profiler")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, required=True, help="device file to write (.yaml)")
    parser.add_argument(
        "--device",
        metavar="NAME",
        default=DEFAULT_DEVICE,
        help=f"device to start from: a file, or {', '.join(list_devices())}",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace FILE")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Read one profile, write one device file."""
    with ExitStack() as bars:

        def show_progress(num_bytes: int) -> Progress:
            bar = tqdm(total=num_bytes, unit="B", unit_scale=True, desc="reading", leave=False, disable=None)
            return bars.enter_context(bar).update

        calibrated = calibrate_device(args.profile, args.output, args.device, args.overwrite, show_progress)
    if not calibrated.is_written:
        fix = "    fix:     profile a training step at profiler level 2"
        print_text(f"error: this profile shows no figure of the device\n{fix}", is_message=True)
    written = f"written: {args.output}" if calibrated.is_written else f"{args.output} was not written"
    return answer(args, calibrated.data, f"{calibrated}\n\n{written}", calibrated.is_written)
