"""Swap and recompute settings of a configuration in another form, its text kept otherwise."""

from pathlib import Path

from mindswap.api.convert_forms import Request, known_trees, to_index_form
from mindswap.api.convert_megatron import MegatronSource, sections_of_megatron
from mindswap.api.convert_versions import VERSIONS, Rewritten, convert_versions
from mindswap.check.check import check_document
from mindswap.config.nodes import Document, to_data
from mindswap.config.parse import parse_document
from mindswap.config.problem import Level, Problem, sort_problems
from mindswap.config.render import COMMAND_LINE
from mindswap.config.sections import rewrite_section
from mindswap.config.source import BASE_CONFIG, load_document
from mindswap.errors import LaunchError, PolicyError
from mindswap.policy.convert import rewrite_for_swap
from mindswap.policy.mindformers_2x.tables import refuse_pynative
from mindswap.policy.read import find_num_layers


def convert_config(
    config: str | None,
    to: str | MegatronSource,
    target: str | None = None,
    num_layers: int | None = None,
    ops_per_layer: int | None = None,
    trace: str | None = None,
) -> Rewritten:
    """Convert one configuration; nothing is written.

    Args:
        config: MindFormers YAML; None makes the sections for options of Megatron-LM alone.
        to: `index` (layer indices, from counts per stage), `2.x`, `1.9`, or options of Megatron-LM to take over.
        target: file that the result is for.
        num_layers: layers of the model, where the file does not say.
        ops_per_layer, trace: between versions, as of `convert_versions`.

    Raises:
        PolicyError: the settings are wrong, or have no counterpart; with every reason.
        LaunchError: what is asked for and the file do not go together.
    """
    document, text = (Document(COMMAND_LINE, None), "") if config is None else _read(config, target)
    request = Request(document, text, num_layers, target or "the result")
    if isinstance(to, str) and to in VERSIONS:
        return convert_versions(request, to, ops_per_layer, trace)
    refuse_pynative(document)
    if isinstance(to, MegatronSource):
        made, num_layers = sections_of_megatron(to, request)
    else:
        num_layers = request.find_num_layers(find_num_layers(document))
        made = to_index_form(document, num_layers, known_trees(document, check_document(document, num_layers)))
    if made.sections.get("swap_config", {}).get("swap") is True and document.root is not None:
        text = rewrite_for_swap(text, parse_document(text.encode("utf-8", "surrogatepass"), document.file), document)
    for name, value in made.sections.items():
        text = rewrite_section(text, name, value, made.comments.get(name), document.file)
    problems = made.problems
    if document.root is not None:  # without CONFIG there is too little of it to check
        written = parse_document(text.encode("utf-8", "surrogatepass"), request.target)
        problems = (*problems, *check_document(written, num_layers).problems)
    return Rewritten(text, sort_problems(problems), {"sections": made.sections})


def _read(config: str, target: str | None) -> tuple[Document, str]:
    """The configuration with what it is based on, and the text of its own file."""
    document = load_document(config)
    if document.problems:
        raise PolicyError(document.problems)
    text = Path(config).read_bytes().decode("utf-8")
    own = parse_document(text.encode(), config)
    if own.get(BASE_CONFIG) is not None:
        _refuse_inherited(own, document)
        if target and Path(target).resolve().parent != Path(config).resolve().parent:
            raise LaunchError(f"{config} is based on other files ({BASE_CONFIG}); write the result beside it")
    return document, text


def _refuse_inherited(own: Document, whole: Document) -> None:
    """A section that stands in another file cannot be replaced in this one: MindFormers merges the two."""
    for section in ("swap_config", "recompute_config", "mindswap"):
        here, merged = own.get(section), whole.get(section)
        if merged is not None and (here is None or to_data(here) != to_data(merged)):
            message = f"{section}: a part of it stands in another file ({BASE_CONFIG})"
            fix = f"copy {section} into {own.file}"
            raise PolicyError([Problem(merged.location, "convert", Level.ERROR, message, fix=fix)])
