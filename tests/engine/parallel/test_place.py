"""Where ranks meet: torchrun's environment, and addresses that cannot work."""

import pytest

from onbeat_engine.parallel.place import GroupPlace, interface_towards, meet
from onbeat_engine.wire.errors import EngineDead
from onbeat_engine.wire.ports import listen
from onbeat_spec.errors import ConfigError

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


def test_torchrun_says_where() -> None:
    assert GroupPlace.from_environment(TORCHRUN) == GroupPlace(1, 4, "10.0.0.1", 29500)
    first = GroupPlace.from_environment({**TORCHRUN, "RANK": "0"})
    assert first.keeps_store
    agent = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "2"}
    restarted = GroupPlace.from_environment({**TORCHRUN, "RANK": "0", **agent})
    assert not restarted.keeps_store
    assert restarted.attempt == 2


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"RANK": ""}, "RANK not set"),
        ({"MASTER_ADDR": "", "MASTER_PORT": ""}, "MASTER_ADDR, MASTER_PORT not set"),
        ({"WORLD_SIZE": "two"}, "must be numbers"),
        ({"RANK": "4"}, "rank 4 is not one of 4"),
        ({"MASTER_PORT": "0"}, "port 0"),
    ],
)
def test_what_cannot_work_is_refused(change: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        GroupPlace.from_environment({**TORCHRUN, **change})


def test_nobody_at_the_address_is_an_error_in_time() -> None:
    with listen() as server:
        port = server.getsockname()[1]
    with pytest.raises(EngineDead, match=f"rank 1 could not reach rank 0 at 127.0.0.1:{port} within 1 s"):
        meet(GroupPlace(1, 2, port=port), timeout=1.0)


def test_the_interface_that_leads_somewhere() -> None:
    assert interface_towards("127.0.0.1") in {"lo", "lo0", None}
    assert interface_towards("no such host") is None
