"""Write a small configuration and a text, to try the commands: `mindswap example`."""

from pathlib import Path

from mindswap.files import DATA, refuse_existing, write_new

NAME, TEXT, NUM_CHARACTERS = "llama2_small.yaml", "text.txt", 4000


def write_example(folder: Path) -> None:
    """Write configuration and text into a folder, which is created if it is missing.

    Raises:
        DataError: if a file exists already, or cannot be written.
    """
    from pydoc_data.topics import topics

    config = DATA / "example" / NAME
    refuse_existing([folder / NAME, folder / TEXT], has_overwrite=False)
    write_new(folder / NAME, config.read_text("utf-8"))
    write_new(folder / TEXT, "\n\n".join(topics.values())[:NUM_CHARACTERS])
