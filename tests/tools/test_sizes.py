"""The sizes of downloads: each package once, in the step that needs it first."""

from pathlib import Path

import pytest

from tools.sizes import main, size


def test_a_step_adds_what_no_step_before_it_has(capsys: pytest.CaptureFixture[str]) -> None:
    def resolve(python: str, what: tuple[str, ...]) -> dict[str, str]:
        assert python == "python3.12"
        names = {".": "onbeat z3", ".[engine,structured]": "onbeat z3 torch nvidia-x numpy"}
        return {name: name for name in names.get(what[-1], "onbeat z3 torch nvidia-x numpy pytest").split()}

    megabytes = {"onbeat": 0, "z3": 40, "torch": 500, "nvidia-x": 2000, "numpy": 20, "pytest": 3}
    main("python3.12", resolve, lambda name: megabytes[name] * 1_000_000)
    assert capsys.readouterr().out.splitlines() == [
        "core                    40 MB",
        "engine               2,520 MB, torch, Triton and CUDA libraries 2,500 of it",
        "development tools        3 MB",
        "model                    0 MB",
    ]


def test_a_file_on_the_disk_is_measured_and_a_folder_is_none(tmp_path: Path) -> None:
    (tmp_path / "a b.whl").write_bytes(b"12345")
    assert size((tmp_path / "a b.whl").as_uri()) == 5
    assert size(tmp_path.as_uri()) == 0
