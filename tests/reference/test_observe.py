"""What invariants see of a scheduler adds up, and stands still."""

from hypothesis import given

from onbeat_reference import BlockPool, Scheduler
from onbeat_reference.observe import observe
from onbeat_spec.config import Config
from onbeat_spec.records import Place, State, view
from tests.reference.helpers import conserved, examples, request, scheduler, turn
from tests.reference.histories import CONFIGS, SEQUENCES, Run


def crowd() -> Scheduler:
    """Two decodes, one waiting without a slot, a load, a landed one, and an orphan."""
    made = scheduler(request("a", 4), request("b", 5), max_num_seqs=6)
    turn(made)
    loads = [request(id, 12, remote=8) for id in ("c", "d", "e")]
    for each in loads:
        made.add_request(each)
    turn(made)
    made.add_request(request("f", 12, priority=2))
    made.load_finished(loads[1])
    made.abort(loads[2])
    made.saturated = True
    made.schedule()
    return made


def test_every_live_request_is_seen_as_it_stands() -> None:
    made = crowd()
    seen = observe(made)
    assert (seen.running, seen.waiting, seen.parked) == (("a", "b", "d", "f"), (), ("c",))
    assert set(seen.requests) == {"a", "b", "c", "d", "f", "e#4"}
    assert all(seen.requests[id] == view(each) for id, each in made.requests.items())


def test_who_ended_while_loading_is_seen_until_its_blocks_are_back() -> None:
    made = crowd()
    orphan = observe(made).requests["e#4"]
    assert (orphan.id, orphan.place, orphan.num_blocks) == ("e", Place.FINISHED, 2)
    made.load_finished(made.orphans[0])
    assert "e#4" not in observe(made).requests


def test_the_sums() -> None:
    seen = observe(crowd())
    assert (seen.num_running, seen.num_loading, seen.num_slots, seen.in_flight) == (4, 2, 5, 1)
    assert (seen.held, seen.held_by_running, seen.free) == (2 + 2 + 3 + 3 + 2 + 2, 2 + 2 + 3 + 3, 86)
    assert (seen.promised, seen.saturated) == (2 + 1 + 2, False)


def test_a_landed_request_holds_its_slot() -> None:
    made = scheduler(request("r", 12, remote=8), request("w", 12))
    made.pause("new")
    assert observe(made).num_slots == 0
    made.resume()
    turn(made)
    made.load_finished(made.parked[0])
    made.abort(made.running[0])
    seen = observe(made)
    assert (seen.waiting, seen.num_slots, seen.num_running, seen.num_loading) == (("r",), 1, 0, 0)


def test_shared_blocks_count_once() -> None:
    made = Scheduler(Config(block_size=4, num_blocks=20, enable_prefix_caching=True))
    prompt = list(range(12))
    for id in "ab":
        made.add_request(request(id, [*prompt, ord(id)]))
        turn(made)
    seen = observe(made)
    assert [seen.requests[id].num_blocks for id in "ab"] == [4, 4]
    assert (seen.held, seen.held_by_running, seen.free) == (5, 5, 15)


def test_an_observation_stands_still() -> None:
    made = scheduler(request("a", 4))
    before = observe(made)
    turn(made)
    assert (before.waiting, before.running, before.requests["a"].num_computed) == (("a",), (), 0)
    assert observe(made) != before
    assert observe(made) == observe(made)


def adds_up(seen: State, made: Scheduler) -> None:
    everybody = [*made.running, *made.waiting, *made.parked, *made.orphans]
    assert seen.free + seen.held == made.config.num_blocks
    assert seen.held_by_running <= seen.held
    assert seen.promised == sum(each.reserved for each in everybody)
    assert seen.num_slots == made.num_slots
    assert seen.num_running == len(seen.running)
    assert len(seen.requests) == len(everybody) == len(made.requests) + len(made.orphans)
    assert sorted([*seen.running, *seen.waiting, *seen.parked]) == sorted(made.requests)
    for place, ids in ((Place.RUNNING, seen.running), (Place.WAITING, seen.waiting), (Place.PARKED, seen.parked)):
        assert all(seen.requests[id].place is place for id in ids)
    assert isinstance(made.pool, BlockPool)
    conserved(made.pool, everybody)


@examples(150)
@given(config=CONFIGS, sequence=SEQUENCES)
def test_it_adds_up_after_every_call(config: Config, sequence: list[tuple[str, int]]) -> None:
    """Of any run: blocks, promises, slots, and each request in one place."""
    run = Run(Scheduler, config, True, 256)
    for step in sequence:
        run.apply(*step)
        adds_up(observe(run.scheduler), run.scheduler)


def test_who_is_live_and_in_no_list_is_seen_all_the_same() -> None:
    """B56: otherwise nobody would ever see it again."""
    made = scheduler(request("a", 4), request("b", 4))
    turn(made)
    lost = made.running.pop()
    seen = observe(made)
    assert (seen.running, seen.requests["b"]) == (("a",), view(lost))
