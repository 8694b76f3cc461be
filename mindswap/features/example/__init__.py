"""`mindswap example`: a small configuration and a text to try everything with."""

from pathlib import Path

from mindswap.files import DATA, refuse_existing, write_new

NAME, TEXT, NUM_CHARACTERS = "llama2_small.yaml", "text.txt", 4000


def write_example(folder: Path) -> None:
    """Write both into a folder, which is made if it is not there. Raises DataError: they are there, or cannot be."""
    from pydoc_data.topics import topics

    config = DATA / "example" / NAME
    refuse_existing([folder / NAME, folder / TEXT], has_overwrite=False)
    write_new(folder / NAME, config.read_text("utf-8"))
    write_new(folder / TEXT, "\n\n".join(topics.values())[:NUM_CHARACTERS])
