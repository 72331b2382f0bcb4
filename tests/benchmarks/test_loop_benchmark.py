"""The step loop's benchmark, run with few steps."""

import json

import pytest

from benchmarks import loop


def test_every_variant_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    loop.main(["--decodes", "3", "--steps", "4", "--json"])
    results = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["variant"] for each in results] == list(loop.VARIANTS)
    assert all(0 < each["loop_us"] < each["step_us"] for each in results)
    loop.main(["--decodes", "2", "--steps", "2"])
    assert "2 decodes, monitor off" in capsys.readouterr().out
