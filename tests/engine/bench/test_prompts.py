"""What is sent, and when."""

import statistics
from itertools import islice, pairwise

import pytest

from onbeat_engine.bench.prompts import Lengths, arrival_times, random_requests, trace_requests
from onbeat_engine.bench.serve import Load
from onbeat_reference.workload import Arrival
from onbeat_spec.errors import WorkloadError


def gaps(rate: float, burstiness: float) -> list[float]:
    times = list(islice(arrival_times(rate, burstiness, seed=1), 20_001))
    assert times[0] == 0
    return [b - a for a, b in pairwise(times)]


@pytest.mark.parametrize(("burstiness", "variation"), [(1.0, 1.0), (0.25, 2.0), (4.0, 0.5)])
def test_gaps_have_the_rate_and_the_burstiness(burstiness: float, variation: float) -> None:
    found = gaps(8.0, burstiness)
    mean = statistics.fmean(found)
    assert mean == pytest.approx(1 / 8, rel=0.05)
    assert statistics.pstdev(found) / mean == pytest.approx(variation, rel=0.05)


def test_an_infinite_rate_is_all_at_once() -> None:
    assert set(islice(arrival_times(float("inf"), 1.0, seed=0), 50)) == {0.0}


def test_random_requests() -> None:
    lengths = Lengths(20, 10, range_ratio=0.5, prefix_len=4)
    made = random_requests(200, lengths, [0.5] * 200, seed=3, vocab_size=1000)
    assert made == random_requests(200, lengths, [0.5] * 200, seed=3, vocab_size=1000)
    assert made != random_requests(200, lengths, [0.5] * 200, seed=4, vocab_size=1000)
    prompts = [each.prompt for each in made]
    assert all(isinstance(prompt, list) and min(prompt) >= 100 and max(prompt) < 1000 for prompt in prompts)
    assert len({tuple(prompt[:4]) for prompt in prompts}) == 1
    assert len({tuple(prompt[4:8]) for prompt in prompts}) > 150
    assert {each.prompt_len for each in made} == set(range(14, 35))
    assert {each.output_len for each in made} == set(range(5, 16))
    assert all(each.prompt_len == len(each.prompt) for each in made)


def test_words_where_the_vocabulary_is_not_known() -> None:
    (made,) = random_requests(1, Lengths(30, 5), [0.0], seed=0, vocab_size=None)
    assert isinstance(made.prompt, str)
    assert len(made.prompt.split()) == made.prompt_len == 30
    (tiny,) = random_requests(1, Lengths(30, 5), [0.0], seed=0, vocab_size=8)
    assert isinstance(tiny.prompt, list)
    assert max(tiny.prompt) < 8


def test_prompts_of_a_trace_share_what_they_shared_there() -> None:
    arrivals = [Arrival(0.0, 1500, 9, (1, 2)), Arrival(1.0, 1100, 40, (1, 3)), Arrival(2.0, 20, 3)]
    made = trace_requests(arrivals, [0, 1, 2], seed=0, vocab_size=5000, max_output_len=30)
    a, b, c = (each.prompt for each in made)
    assert (len(a), len(b), len(c)) == (1500, 1100, 20)
    assert a[:512] == b[:512]
    assert a[512:600] != b[512:600]
    assert [each.output_len for each in made] == [9, 30, 3]
    cut = trace_requests(arrivals, [0, 1, 2], seed=0, vocab_size=5000, max_input_len=100)
    assert [each.prompt_len for each in cut] == [100, 100, 20]
    with pytest.raises(WorkloadError, match="no request"):
        trace_requests([], [], seed=0, vocab_size=None)


def test_a_trace_comes_at_its_own_times_or_at_a_rate() -> None:
    own = Load(dataset="trace", path="builtin", num_prompts=50).plan()
    fast = Load(dataset="trace", path="builtin", num_prompts=50, speed=10).plan()
    assert [each.at for each in fast] == pytest.approx([each.at / 10 for each in own])
    rated = Load(dataset="trace", path="builtin", num_prompts=50, rate=1000.0).plan()
    assert rated[-1].at < 1 < own[-1].at
    assert [each.prompt_len for each in rated] == [each.prompt_len for each in own]
    with pytest.raises(WorkloadError, match="dataset-path"):
        Load(dataset="trace").plan()
    with pytest.raises(WorkloadError, match="cannot be read"):
        Load(dataset="trace", path="/nowhere.csv").plan()
