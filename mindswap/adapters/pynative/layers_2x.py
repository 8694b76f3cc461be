"""Layers of a network of MindFormers 2.x."""

from mindspore import nn

from mindswap.errors import LaunchError


def layers_of(model: nn.Cell) -> list[nn.Cell]:
    """Return the layers of a model, those for multi-token prediction last."""
    gpt_model = find_gpt_model(model)
    return [*gpt_model.decoder.layers, *getattr(getattr(gpt_model, "mtp", None), "layers", ())]


def indices_of_layers(model: nn.Cell, num_decoder_layers: int) -> tuple[int, ...]:
    """Return the indices of a model's layers in the full model, of which a pipeline stage has a part.

    Args:
        model: model or stage.
        num_decoder_layers: layers of the full model, without those for multi-token prediction.
    """
    num_layers = len(layers_of(model))
    decoder = find_gpt_model(model).decoder
    num_own = len(list(decoder.layers))
    first = getattr(decoder, "layer_start", 0)
    return (*range(first, first + num_own), *range(num_decoder_layers, num_decoder_layers + num_layers - num_own))


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
