"""Record a step of a configuration of MindFormers 2.x with its own trainer, in MindSpore's dry run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from mindswap.config.nodes import Document
from mindswap.config.render import block_lines
from mindswap.features.dryrun.backend import StatusCallback
from mindswap.features.dryrun.cann_stand_ins import prepare_stand_ins
from mindswap.features.dryrun.memory_pool import TRACKER, read_tracker
from mindswap.features.dryrun.rank_runs import run_folder
from mindswap.features.dryrun.trainer_config import (
    MAX_MICRO_BATCHES,
    num_micro_batches,
    require_valid_2x,
    switched_off_2x,
    trainer_request,
)
from mindswap.features.dryrun.trainer_run import OWN_SWAP, require_mindformers_2x, run_program
from mindswap.policy.formats.mindformers2.read import MTP_KEYS, NUM_LAYERS_KEYS, find_mtp_layers
from mindswap.pynative.step_memory import read_step_memory
from mindswap.pynative.trace import RecordedStep, Trace, load_trace

PROGRAM = "mindswap.adapters.pynative.trainer_trace"


def record_trainer_step(
    document: Document, report_status: StatusCallback = lambda line: None, stage: int = 0
) -> RecordedStep:
    """Record forward and backward of one rank, without swap and recompute.

    Args:
        document: a configuration of MindFormers 2.x.
        report_status: called with each line on the progress.
        stage: pipeline stage of the rank.

    Raises:
        PolicyError: the configuration has errors, or this Python has no MindFormers 2.x.
        LaunchError: the dry run is not possible or failed.
    """
    require_valid_2x(document)
    arguments = {**trace_request(document), "text": graph_mode_text(document)}
    rank = replace(trainer_request(document), stage=stage).variables
    require_mindformers_2x(document)
    prepare_stand_ins(report_status)
    with run_folder(None) as folder:
        variables = {"MS_ALLOC_CONF": f"memory_tracker:True,memory_tracker_path:{TRACKER}", **rank}
        result, _ = run_program(PROGRAM, arguments, folder / "trace", report_status, variables)
        tasks, blocks = read_tracker(folder / "trace")
    step = load_trace(result["trace"], document.file)
    memory = read_step_memory(step.trace, result["names"], tasks, blocks, result)
    return replace(step, memory=memory, layer_indices=tuple(result["layer_indices"]))


def trace_request(document: Document) -> dict[str, Any]:
    """Return what determines the trace of a configuration: that of the trainer without swap and recompute, and data.

    Raises:
        GraphError: a size of the model is missing.
        LaunchError: the batch cannot be distributed.
    """
    request = trainer_request(document)
    config, sample = switched_off_2x(request.config), dict(request.sample)
    if request.num_stages > 1:  # one micro-batch after the other runs; how many are in flight does not matter
        count = min(MAX_MICRO_BATCHES, sample["num_micro_batches"])
        sample["num_micro_batches"] = count
        config["training"] = {**config["training"], "global_batch_size": sample["batch_size"] * count}
    return {"config": config, "sample": sample}


def record_own_swap_step(document: Document, report_status: StatusCallback = lambda line: None) -> Trace:
    """Record the step that mindswap's own swap follows, with the recompute of the file; in the dry run, in one process.

    Args:
        document: a configuration of MindFormers 2.x.
        report_status: called with each line on the progress.

    Raises:
        LaunchError: the dry run is not possible or failed.
    """
    request = trainer_request(document)
    prepare_stand_ins(report_status)
    config = {name: value for name, value in request.config.items() if name != "swap"}
    arguments = {"config": config, "sample": request.sample}
    with run_folder(None) as folder:
        result, _ = run_program(OWN_SWAP, arguments, folder / "trace", report_status)
    return load_trace(result["trace"], document.file).trace


def graph_mode_text(document: Document) -> str:
    """Return the sizes and the optimizer in the form of MindFormers 1.9, which the readers of a trace understand.

    Traces are handed to others: of the path of the file only its name is in the text.

    Args:
        document: a configuration of MindFormers 2.x.
    """
    num_mtp_layers = find_mtp_layers(document)  # they are layers of the trace as others
    model = {key: value for key, value in document.data().get("model", {}).items() if key not in MTP_KEYS}
    model |= {key: model[key] + num_mtp_layers for key in NUM_LAYERS_KEYS if key in model}
    data = {
        "run_mode": "train",
        "use_legacy": False,
        "context": {"mode": 1},
        "runner_config": {
            "batch_size": document.count("training", "local_batch_size"),
            "gradient_accumulation_steps": num_micro_batches(document),
        },
        "optimizer": {"type": document.value("optimizer", "type") or "AdamW"},
        "model": {"model_config": model},
    }
    if document.get("mindswap") is not None:
        data["mindswap"] = document.data()["mindswap"]
    head = f"# from {Path(document.file).name} of MindFormers 2.x, in the form of 1.9"
    return "\n".join([head, *block_lines(data, 0, 2)]) + "\n"
