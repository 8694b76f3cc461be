"""Layers of a network of MindFormers 2.x."""

from mindspore import nn

from mindswap.errors import LaunchError


def layers_of(model: nn.Cell) -> list[nn.Cell]:
    """Return the layers of a model, those for multi-token prediction last."""
    gpt_model = find_gpt_model(model)
    return [*gpt_model.decoder.layers, *getattr(getattr(gpt_model, "mtp", None), "layers", ())]


def find_gpt_model(model: nn.Cell) -> nn.Cell:
    """Return the cell whose `decoder` has the layers.

    Raises:
        LaunchError: there is none.
    """
    for _, cell in model.cells_and_names():
        if hasattr(getattr(cell, "decoder", None), "layers"):
            return cell
    raise LaunchError(
        f"{type(model).__name__} has no decoder with layers, as models of MindFormers 2.x have\n"
        "    allowed: a model that MindFormers 2.x builds on its GPTModel"
    )
