"""The benchmark of the recorder runs, and its trace holds. How fast anything is, no test says."""

import pytest

from benchmarks import recorder


def test_it_prints_a_row_for_each_shape(capsys: pytest.CaptureFixture[str]) -> None:
    assert recorder.main(["--decodes=1,3", "--steps=8", "--rounds=1"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[0] == "decodes"
    assert [row.split()[0] for row in rows] == ["1", "3"]
    assert all(float(cell.replace(",", "")) > 0 for row in rows for cell in row.split())


def test_a_ratio_is_recorded_over_plain() -> None:
    assert recorder.Row(1, 2.0, 3.0, 100.0, 1.0).ratio == 1.5
