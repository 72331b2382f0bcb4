"""Reading traces of arrivals, and the generator."""

import statistics
from itertools import pairwise
from pathlib import Path

import pytest

from onbeat_reference.workload import BLOCK_TOKENS, PREFIXES, Arrival, arrivals, builtin, read
from onbeat_spec.errors import WorkloadError

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
FIRST = "2023-11-16 18:15:46.6805900,374,44\n"
CSV = HEADER + FIRST + "2023-11-16 18:15:50.9951690,396,109\n"
ROW = '{"timestamp": 27482, "input_length": 1030, "output_length": 52, "hash_ids": [46, 47, 5]}\n'
JSONL = ROW + '{"timestamp": 30535, "input_length": 655, "output_length": 26, "hash_ids": [46, 48]}\n'


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Where a test puts its trace; the name says nothing about the form."""
    return tmp_path / "trace"


def error(path: Path) -> str:
    """What is said of a trace that cannot be read, without the path."""
    with pytest.raises(WorkloadError) as caught:
        read(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message.removeprefix(str(path)).removeprefix(", ")


# --- Azure CSV -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [CSV, CSV.replace("\n", "\r\n"), CSV.rstrip("\n"), "\ufeff" + CSV])
def test_an_azure_trace(trace: Path, text: str) -> None:
    trace.write_text(text, encoding="utf-8", newline="")
    assert read(trace) == [Arrival(0.0, 374, 44), Arrival(4.314579, 396, 109)]
    assert read(str(trace)) == read(trace)


@pytest.mark.parametrize(
    ("first", "second", "seconds"),
    [
        ("2024-05-10 00:00:00.009930+00:00", "2024-05-10 00:00:01+00:00", 0.99007),
        ("2024-05-10T00:00:00Z", "2024-05-10T02:00:00.5+02:00", 0.5),
        ("2024-05-10 00:00:00+0530", "2024-05-09 18:30:00Z", 0.0),
        ("2024-05-09 23:00:00-01:30", "2024-05-10 00:30:01", 1.0),
        ("2024-02-28 23:59:59.9", "2024-02-29 00:00:00.1", 0.2),
        ("2023-12-31 23:59:59.999999999", "2024-01-01 00:00:00.000000000", 1e-9),
    ],
)
def test_times_with_and_without_a_zone(trace: Path, first: str, second: str, seconds: float) -> None:
    trace.write_text(f"{HEADER}{first},1,1\n{second},2,2\n")
    assert [arrival.time_s for arrival in read(trace)] == [0.0, seconds]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("2023-11-16 18:15:47,5", "'2023-11-16 18:15:47,5' has 2 fields instead of 3; complete or remove the line"),
        ("2023-11-16 18:15:47,5,6,7", "'2023-11-16 18:15:47,5,6,7' has 4 fields instead of 3; complete or remove"),
        ("", "'' has 1 field instead of 3; complete or remove the line"),
        ("2023-11-16 18:1", "'2023-11-16 18:1' has 1 field instead of 3; complete or remove the line"),
        ("2023-11-16 18:15:47,5,", "GeneratedTokens is ''; it must be a whole number from 1 to 999,999,999; correct"),
        ("2023-11-16 18:15:47,5,0", "GeneratedTokens is '0'; it must be a whole number from 1 to 999,999,999;"),
        ("2023-11-16 18:15:47,0,5", "ContextTokens is '0'; it must be a whole number from 1"),
        ("2023-11-16 18:15:47,-4,5", "ContextTokens is '-4'; it must be a whole number from 1"),
        ("2023-11-16 18:15:47,4.0,5", "ContextTokens is '4.0'; it must be a whole number from 1"),
        ("2023-11-16 18:15:47,1_0,5", "ContextTokens is '1_0'; it must be a whole number from 1"),
        ("2023-11-16 18:15:47, 4,5", "ContextTokens is ' 4'; it must be a whole number from 1"),
        ("2023-11-16 18:15:47,\u0663,5", "ContextTokens is '\u0663'; it must be a whole number from 1"),
        ("2023-11-16 18:15:47,1000000000,5", "ContextTokens is '1000000000'; it must be a whole number from 1"),
        ("2023-11-16 18:15:47,4,nan\x00", r"GeneratedTokens is 'nan\x00'; it must be a whole number from 1"),
        ("16.11.2023 18:15:47,4,5", "TIMESTAMP is '16.11.2023 18:15:47'; it must look like 2023-11-16 18:15:46."),
        ("2023-02-29 18:15:47,4,5", "TIMESTAMP is '2023-02-29 18:15:47'; it must look like"),
        ("2023-11-16 18:15:60,4,5", "TIMESTAMP is '2023-11-16 18:15:60'; it must look like"),
        ("2023-11-16 18:15:47.,4,5", "TIMESTAMP is '2023-11-16 18:15:47.'; it must look like"),
        (
            "2023-11-16 18:15:45.6805900,4,5",
            "the time lies 1 s before that of the line above; put the lines into the order of their times",
        ),
        (ROW.rstrip(), """'{"timestamp": 27482, "input_length": 1030, "output_lengt... has 6 fields instead of 3;"""),
    ],
)
def test_a_wrong_csv_line(trace: Path, line: str, message: str) -> None:
    trace.write_text(f"{HEADER}{FIRST}{line}\n{FIRST}", encoding="utf-8")
    assert error(trace).startswith(f"line 3: {message}")


def test_a_cut_csv_file(trace: Path) -> None:
    """Cut within its last number, it cannot be told from a whole one: Azure's own files end without a line break."""
    whole = CSV.rstrip("\n")
    for length in range(len(HEADER + FIRST) + 1, len(whole)):
        trace.write_text(whole[:length])
        if whole[:length].endswith((",1", ",10")):
            assert read(trace)[1].output_tokens in (1, 10)
        else:
            assert error(trace).startswith("line 3: ")


# --- Mooncake JSONL ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [JSONL, JSONL.replace("\n", "\r\n"), JSONL.rstrip("\n"), "\ufeff" + JSONL])
def test_a_mooncake_trace(trace: Path, text: str) -> None:
    trace.write_text(text, encoding="utf-8", newline="")
    assert read(trace) == [Arrival(0.0, 1030, 52, (46, 47, 5)), Arrival(3.053, 655, 26, (46, 48))]


def test_a_mooncake_trace_without_hashes_and_with_more(trace: Path) -> None:
    trace.write_text('{"timestamp": 0.25, "input_length": 9, "output_length": 1, "model": "m"}\n')
    assert read(trace) == [Arrival(0.0, 9, 1)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (ROW[:41], """'{"timestamp": 27482, "input_length": 1030' is no whole JSON object; complete or remove the"""),
        ("", "'' is no whole JSON object; complete or remove the line"),
        ("[1, 2]", "'[1, 2]' is no whole JSON object; complete or remove the line"),
        (ROW.replace("input_length", "prompt"), "input_length is missing; complete or remove the line"),
        (ROW.replace("output_length", "output"), "output_length is missing; complete or remove the line"),
        (ROW.replace("timestamp", "time"), "timestamp is missing; complete or remove the line"),
        (ROW.replace("27482", "-1"), "timestamp is -1; it must be a number of milliseconds, 0 or more; correct or"),
        (ROW.replace("27482", "NaN"), "timestamp is nan; it must be a number of milliseconds"),
        (ROW.replace("27482", "Infinity"), "timestamp is inf; it must be a number of milliseconds"),
        (ROW.replace("27482", "true"), "timestamp is True; it must be a number of milliseconds"),
        (ROW.replace("27482", '"27482"'), "timestamp is '27482'; it must be a number of milliseconds"),
        (ROW.replace("27482", "27481"), "the time lies 0.001 s before that of the line above; put the lines into"),
        (ROW.replace("1030", "0"), "input_length is 0; it must be a whole number from 1 to 999,999,999; correct or"),
        (ROW.replace("1030", "1030.0"), "input_length is 1030.0; it must be a whole number from 1"),
        (ROW.replace("1030", "true"), "input_length is True; it must be a whole number from 1"),
        (ROW.replace("52", "-52"), "output_length is -52; it must be a whole number from 1 to 999,999,999;"),
        (ROW.replace("52", "0"), "output_length is 0; it must be a whole number from 1"),
        (ROW.replace("52", "null"), "output_length is None; it must be a whole number from 1"),
        (ROW.replace("[46, 47, 5]", "7"), "hash_ids is 7; it must be a list of whole numbers from 0 to 2**62 - 1;"),
        (ROW.replace("46", "-46"), "hash_ids is [-46, 47, 5]; it must be a list of whole numbers from 0"),
        (ROW.replace("46", "1.5"), "hash_ids is [1.5, 47, 5]; it must be a list of whole numbers from 0"),
        (
            ROW.replace("1030", "1024"),
            "hash_ids has 3 ids, and 1024 tokens are 2 blocks of 512; correct the line, or convert the file to blocks",
        ),
    ],
)
def test_a_wrong_jsonl_line(trace: Path, line: str, message: str) -> None:
    trace.write_text(ROW + line.rstrip("\n") + "\n" + ROW)
    assert error(trace).startswith(f"line 2: {message}")


@pytest.mark.parametrize("damage", ["[", "9"])
def test_what_json_itself_gives_up_on(trace: Path, damage: str) -> None:
    trace.write_text(ROW.replace("1030", damage * 100_000))
    assert error(trace).endswith("... is no whole JSON object; complete or remove the line")


def test_a_cut_jsonl_file(trace: Path) -> None:
    whole = JSONL.rstrip("\n")
    for length in range(len(ROW) + 1, len(whole)):
        trace.write_text(whole[:length])
        assert "is no whole JSON object; complete or remove the line" in error(trace)


# --- Files that are neither ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "line 1: the file ends before any request; give a file that holds at least one"),
        (HEADER.encode(), "line 1: the file ends before any request; give a file that holds at least one"),
        (
            b"TIMESTAMP,ContextTokens\n",
            f"line 1: 'TIMESTAMP,ContextTokens' is neither the header {HEADER.strip()} nor a JSON object; "
            "give an Azure CSV or a Mooncake JSONL file",
        ),
        (FIRST.encode(), f"line 1: {FIRST.strip()!r} is neither the header {HEADER.strip()} nor a JSON object;"),
        (b"\n" + CSV.encode(), f"line 1: '' is neither the header {HEADER.strip()} nor a JSON object; give an Azure"),
        (b"\x1f\x8b\x08\x00", "line 1: byte 0x8b is not UTF-8; unpack it if it is compressed, or convert it to UTF-8"),
        (CSV.encode("utf-16"), "line 1: byte 0xff is not UTF-8; unpack it if it is compressed, or convert it to UTF-8"),
        (CSV.encode() + b"2023-11-16 18:15:5\xe9,1,1", "line 4: byte 0xe9 is not UTF-8;"),
        (ROW.encode() + b'{"timestamp": \xff}\n', "line 2: byte 0xff is not UTF-8;"),
    ],
)
def test_a_file_of_no_form(trace: Path, content: bytes, message: str) -> None:
    trace.write_bytes(content)
    assert error(trace).startswith(message)


def test_a_file_that_is_not_there(trace: Path) -> None:
    advice = "give the path of an Azure CSV or a Mooncake JSONL file"
    assert error(trace) == f": cannot be read (No such file or directory); {advice}"
    trace.mkdir()
    assert error(trace) == f": cannot be read (Is a directory); {advice}"


# --- The generator -------------------------------------------------------------------------------------------------


def test_the_generator_is_the_same_everywhere() -> None:
    """The values were computed once; another Python version must give them too."""
    assert builtin(0, 4) == [
        Arrival(0.0, 1061, 37),
        Arrival(0.108415, 967, 150),
        Arrival(0.288787, 544, 89),
        Arrival(0.298875, 2048, 58, (8, 9)),
    ]
    assert sum(arrival.prompt_tokens for arrival in builtin()) == 2_380_182
    assert sum(arrival.output_tokens for arrival in builtin()) == 316_233
    assert builtin(0, 100) == builtin()[:100]
    assert builtin(1, 100) != builtin(0, 100)
    assert len(builtin()) == 2000


def test_the_generator_has_the_shape_it_says() -> None:
    arrivals = builtin(seed=3, requests=20_000)
    times = [arrival.time_s for arrival in arrivals]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert times[0] == 0.0
    assert min(gaps) >= 0
    assert statistics.mean(gaps) == pytest.approx(1 / 5.5, rel=0.05)
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(2**0.5, rel=0.05)
    prompts = statistics.quantiles([arrival.prompt_tokens for arrival in arrivals], n=100)
    outputs = statistics.quantiles([arrival.output_tokens for arrival in arrivals], n=100)
    assert (prompts[49], prompts[98]) == pytest.approx((1000, 4200), rel=0.05)
    assert (outputs[49], outputs[98]) == pytest.approx((130, 600), rel=0.05)


def test_the_generator_shares_prefixes() -> None:
    arrivals = builtin(requests=5000)
    shared = [arrival.block_hashes for arrival in arrivals if arrival.block_hashes]
    assert 0.2 < len(shared) / len(arrivals) < 0.3
    assert set(PREFIXES) <= set(shared)
    assert all(any(hashes == prefix[: len(hashes)] for prefix in PREFIXES) for hashes in shared)
    assert all(len(arrival.block_hashes) * BLOCK_TOKENS <= arrival.prompt_tokens for arrival in arrivals)
    assert len({block for prefix in PREFIXES for block in prefix}) == sum(map(len, PREFIXES))


def test_the_generator_refuses_no_requests() -> None:
    with pytest.raises(WorkloadError, match=r"^requests is 0; a workload needs at least 1$"):
        builtin(requests=0)


def test_arrivals_are_generated_or_read(tmp_path: Path) -> None:
    file = tmp_path / "builtin"
    file.write_text('{"timestamp": 0, "input_length": 3, "output_length": 2}\n')
    assert arrivals("builtin") == builtin()
    assert arrivals("builtin", 7) == builtin(7)
    assert arrivals(str(file), 7) == [Arrival(0, 3, 2)]
