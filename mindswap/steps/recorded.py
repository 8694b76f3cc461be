"""Steps recorded in PyNative mode, an alternative to compiled configurations."""

from pathlib import Path

from mindswap.adapters.quiet import quiet
from mindswap.config.nodes import Document
from mindswap.config.parse import parse_document
from mindswap.config.render import block_lines
from mindswap.config.source import load_document
from mindswap.config.step_settings import uses_pynative_mode
from mindswap.errors import DataError, GraphError
from mindswap.files import read_limited
from mindswap.graph.analysis.liveness import LayerSample
from mindswap.policy.formats.mindformers2.tables import ConfigFormat, find_format
from mindswap.pynative.from_trace import graph_of_trace
from mindswap.pynative.trace import RecordedStep, load_trace
from mindswap.rules.checker import check_document, missing_model
from mindswap.rules.machine.software import require_mindformers
from mindswap.simulator.captured_step import CapturedStep


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
    text = Path(config).read_text("utf-8")
    if document.get("base_config") is not None:
        text = "\n".join(block_lines(document.data(), 0, 2)) + "\n"
    with quiet():
        from mindswap.adapters.pynative.trace_config import record_config

        return record_config(config_path, document.is_legacy, text)


def is_trace_path(path: str) -> bool:
    """Return whether a path has the suffix of a trace; configurations are YAML."""
    return path.endswith(".json")


def read_trace(path: str) -> tuple[RecordedStep, Document]:
    """Read a file of `mindswap trace`; return the step and its configuration.

    Raises:
        DataError: if it cannot be read.
    """
    try:
        text = read_limited(path).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    step = load_trace(text, path)
    return step, parse_document(step.config, path)


def capture_of(step: RecordedStep) -> CapturedStep:
    """Convert a recorded step to a captured step, the input of simulations.

    Raises:
        GraphError: if the operators were recorded without their tensors.
    """
    if not any(operator.outputs for operator in step.trace.operators):
        raise GraphError("the trace has no tensors of operators; record it with `mindswap trace`")
    graph = graph_of_trace(step.trace)
    all_layers = tuple(range(step.trace.num_layers))
    notes = [f"recorded in PyNative mode on {step.trace.device}; durations are of the device file"]
    if step.trace.device == "CPU":
        notes.append("on CPU a kernel copies a view before it reads it, and attention is made of single operators")
    return CapturedStep(LayerSample(all_layers, all_layers), step.layers, graph, notes=(*step.notes, *notes))


# Configurations that cannot be compiled: PyNative mode, inference, or no model.


def require_compilable(document: Document, takes_trace: bool = True) -> None:
    """Refuse configurations that cannot be compiled, before building the network.

    Args:
        document: the configuration.
        takes_trace: whether the command also supports recorded steps, for the message.

    Raises:
        GraphError: if it trains in PyNative mode, is for inference, or has no model.
    """
    mode = document.get("context", "mode")
    if mode is not None and uses_pynative_mode(document):
        instead = (
            f"mindswap trace {document.file} -o step.json, and give step.json to this command"
            if takes_trace
            else "the log of `mindswap run` reports what was swapped, and whether it matches the prediction"
        )
        raise GraphError(
            f"{mode.location}: context.mode: {mode.value}: no graph is compiled in PyNative mode, and this command "
            f"reads the compiled graph\n    fix:     {instead}; or mode: 0, to see what graph mode makes of the network"
        )
    past = document.get("model", "model_config", "use_past")
    if past is not None and past.value is True:
        raise GraphError(
            f"{past.location}: model.model_config.use_past: True: the file is for inference, and this command compiles "
            "a training\n    fix:     use_past: False, or a file that trains"
        )
    # An unreadable file, or a file of 2.x, has more specific problems.
    is_read = document.root is not None and find_format(document) is ConfigFormat.GRAPH
    missing = missing_model(document) if is_read else None
    if missing:
        raise GraphError(missing)
