"""Ranks without a model that are a real group: what is left of a forward is that they agree on its sizes."""

from dataclasses import replace

from onbeat_engine.parallel.group import Group
from onbeat_engine.parallel.place import GroupPlace
from onbeat_engine.rank.parts import Built
from onbeat_engine.testing import fake
from onbeat_engine.testing.fake import FakeExecutor, LocalExchange
from onbeat_engine.wire.config import EngineConfig


class Forwards(LocalExchange):
    def __init__(self, group: Group) -> None:
        self.real = group

    def forward(self) -> None:
        self.real.forward_shape(1)


def build(config: EngineConfig, rank: int) -> Built:
    place = GroupPlace(rank, config.data_parallel_size, port=config.data_parallel_port)
    group = Group.join(place, config.settings, {}, timeout=config.collective_timeout)
    built = fake.build(config, rank)
    assert isinstance(built.executor, FakeExecutor)
    built.executor.group = Forwards(group)
    return replace(built, exchange=group)
