"""What of a configuration stands in the way of a compile: its mode, inference, or that it has no model."""

from mindswap.check.check import missing_model
from mindswap.config.nodes import Document
from mindswap.config.step import is_pynative
from mindswap.errors import GraphError
from mindswap.policy.mindformers_2x.tables import Form, find_form


def require_compilable(document: Document, takes_trace: bool = True) -> None:
    """Refuse, before anything is built, what no compiled graph can tell about.

    `takes_trace`: the command also reads a step that ran in PyNative mode.

    Raises:
        GraphError: if it trains in PyNative mode, is for inference, or has no model.
    """
    mode = document.get("context", "mode")
    if mode is not None and is_pynative(document):
        instead = (
            f"mindswap trace {document.file} -o step.json, and give step.json to this command"
            if takes_trace
            else "the log of `mindswap run` says what was moved, and whether as predicted"
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
    # What cannot be read, or is a file of 2.x, has problems of its own, which say more.
    is_read = document.root is not None and find_form(document) is Form.GRAPH
    missing = missing_model(document) if is_read else None
    if missing:
        raise GraphError(missing)
