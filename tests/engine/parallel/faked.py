"""Ranks without a model that are a real group: what is left of a forward is that they agree on its sizes."""

from dataclasses import replace

from onbeat_engine import fake
from onbeat_engine.config import EngineConfig
from onbeat_engine.core import Built
from onbeat_engine.fake import FakeExecutor, LocalExchange
from onbeat_engine.parallel.group import Group
from onbeat_engine.parallel.place import Place


class Forwards(LocalExchange):
    def __init__(self, group: Group) -> None:
        self.real = group

    def forward(self) -> None:
        self.real.forward_shape(1)


def build(config: EngineConfig, rank: int) -> Built:
    place = Place(rank, config.data_parallel_size, port=config.data_parallel_port)
    group = Group.join(place, config.settings, {}, timeout=config.collective_timeout)
    built = fake.build(config, rank)
    assert isinstance(built.executor, FakeExecutor)
    built.executor.group = Forwards(group)
    return replace(built, exchange=group)
