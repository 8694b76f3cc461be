"""Names of operators as values: several where a graph cannot tell operators apart."""


class Names(tuple[str, ...]):
    """The operator paths that one operator of a graph may have; most often one. As text, `|` stands between them."""

    __slots__ = ()

    def __str__(self) -> str:
        return "|".join(self)

    @classmethod
    def of(cls, path: str) -> "Names":
        """A single one."""
        return cls((path,))


# What the simulator calls an operator or a tensor: the operator of the graph, or words of its own.
Label = Names | str
