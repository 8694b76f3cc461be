"""How a configuration trains: in graph mode or in PyNative mode, on what."""

from mindswap.config.nodes import Document

# What `context.mode` takes (mindformers/tools/utils.py, MODE); without the key it is graph mode.
GRAPH = (0, "GRAPH_MODE")
PYNATIVE = (1, "PYNATIVE_MODE")
ASCEND = "Ascend"
# Where the scheduler of a job listens (MindFormers' scripts/msrun_launcher.sh).
DEFAULT_MASTER_PORT = 8118


def is_pynative(document: Document) -> bool:
    """Operators run one by one: mindswap itself moves the memory."""
    mode = document.value("context", "mode")
    return not isinstance(mode, bool) and mode in PYNATIVE


def device_target(document: Document) -> str:
    """What MindSpore runs on: `context.device_target`, Ascend where that is missing or null."""
    value = document.value("context", "device_target")
    return ASCEND if value is None else str(value)


def is_on_cpu(document: Document) -> bool:
    """The device target is CPU."""
    return device_target(document) == "CPU"
