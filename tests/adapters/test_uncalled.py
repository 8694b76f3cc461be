"""Which cells a model never calls, from the source of its classes."""

from mindswap.adapters.graph.apply import find_uncalled


class Base:
    def shard(self):
        self.norm.shard(2)
        self.attention.shard(2)


class Layer(Base):
    def __init__(self):
        self.norm, self.attention, self.mlp, self.router = object, object, object, object
        self.attention(1)  # while it is built, nothing is compiled

    def construct(self, x):
        x = self.attention.project(self.norm(x))
        return self.attention.finish(x) + self.helper(x)

    def helper(self, x):
        cell = self.mlp
        return cell(x) + self.router.weight


def test_what_is_only_a_place_of_methods_is_not_called():
    assert find_uncalled(Layer) == {"attention", "router"}


def test_of_a_class_without_source_nothing_is_known():
    made = type("Made", (), {"construct": lambda self, x: self.attention.project(x)})
    assert find_uncalled(type(made())) == set()
