"""A step recorded in PyNative mode, in place of a configuration that is compiled."""

from importlib.metadata import version
from pathlib import Path

from mindswap.adapters.quiet import quiet
from mindswap.check.check import check_document
from mindswap.check.doctor.software import require_mindformers
from mindswap.config.nodes import Document
from mindswap.config.parse import parse_document
from mindswap.config.render import block_lines
from mindswap.config.source import load_document
from mindswap.errors import DataError, GraphError
from mindswap.graph.lifetime import LayerSample
from mindswap.pynative.from_trace import graph_of_trace
from mindswap.pynative.trace_file import RecordedStep, load_trace
from mindswap.simulator.captured import CapturedStep


def record_step(config: str) -> RecordedStep:
    """Record one step of a configuration on this machine.

    Raises:
        PolicyError: if the configuration is wrong.
        GraphError: if the network cannot be built, or run here.
    """
    document = load_document(config)
    check_document(document).require_policy()
    require_mindformers()
    config_path = str(Path(config).resolve())  # quiet() changes the working directory
    with quiet():
        from mindswap.adapters.pynative.trace_config import record_config

        found = record_config(config_path, document.is_legacy)
    text = Path(config).read_text("utf-8")
    if document.get("base_config") is not None:
        text = "\n".join(block_lines(document.data(), 0, 2)) + "\n"
    versions = {name: version(name) for name in ("mindspore", "mindformers")}
    return RecordedStep(found.trace, found.layers, text, versions, found.notes)


def is_trace_path(path: str) -> bool:
    """A name that only a trace has; configurations are YAML."""
    return path.endswith(".json")


def read_trace(path: str) -> tuple[RecordedStep, Document]:
    """A file of `mindswap trace`, and the configuration in it. Raises DataError if it cannot be read."""
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    step = load_trace(text, path)
    return step, parse_document(step.config, path)


def capture_of(step: RecordedStep) -> CapturedStep:
    """The step as simulations start from it. Raises GraphError if its operators were recorded without their tensors."""
    if not any(operator.outputs for operator in step.trace.operators):
        raise GraphError("the trace has no tensors of operators; record it with `mindswap trace`")
    graph = graph_of_trace(step.trace)
    whole = tuple(range(step.trace.num_layers))
    notes = [f"recorded in PyNative mode on {step.trace.device}; durations are of the device file"]
    if step.trace.device == "CPU":
        notes.append("on CPU a kernel copies a view before it reads it, and attention is made of single operators")
    return CapturedStep(LayerSample(whole, whole), step.layers, graph, notes=(*step.notes, *notes))
