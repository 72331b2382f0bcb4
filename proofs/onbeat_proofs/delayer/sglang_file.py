"""Finds SGLang's delayer and loads it by its path, alone, with stand-ins for what it imports of SGLang.

Everything that differs between versions in how the class is made and called is here and in `sglang.py`. Seen: 0.5.10
(four ints a row, no queue rule), 0.5.17 (the queue rule, local clocks), 0.5.22 and 0.5.23 (six ints, settings taken
from a runtime context).
"""

import ast
import importlib.util
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from onbeat_proofs.delayer import plain
from onbeat_proofs.delayer.rows import Settings
from onbeat_proofs.foreign.targets import where_raised
from onbeat_spec.errors import NotADelayer

PLACE = Path("srt", "managers", "prefill_delayer.py")
UNKNOWN = "of unknown version"
MISSING = "give the file's path, or run where sglang is installed"


@dataclass(frozen=True, slots=True)
class Loaded:
    """SGLang's module, run alone.

    Attributes:
        module: the module object.
        file: where it is.
        version: SGLang's version, or `UNKNOWN`.
        clock: what stands for the module `time`; set its `now`, in seconds.
        tensors: `plain` or `torch`: what rows are made of.
    """

    module: ModuleType
    file: Path
    version: str
    clock: "Clock"
    tensors: str

    @property
    def name(self) -> str:
        """What a report calls it."""
        return f"SGLang {self.version}, PrefillDelayer"


class Clock(SimpleNamespace):
    """Stands for the module `time`."""

    now: float = 0.0

    def perf_counter(self) -> float:
        """Return the injected time, in seconds."""
        return self.now

    time = monotonic = perf_counter


def find(target: str) -> Path:
    """Return the file that `sglang` (the installed package), a path to the file, or to the package's folder, names.

    Raises:
        NotADelayer: there is none.
    """
    if target == "sglang":
        spec = importlib.util.find_spec("sglang")  # a top-level name: nothing of it is imported
        folders = list(spec.submodule_search_locations or ()) if spec is not None else []
        if not folders:
            raise NotADelayer(f"sglang is not installed for {sys.executable}; {MISSING}")
        file = Path(folders[0]) / PLACE
    else:
        file = Path(target)
        if file.is_dir():
            nested = [file / PLACE, file / "sglang" / PLACE]
            file = next((path for path in nested if path.is_file()), nested[0])
    if not file.is_file():
        raise NotADelayer(f"there is no file {file}; {MISSING}")
    return file


def version_of(file: Path) -> str:
    """Return the version of the SGLang that a file lies in: from its `_version.py`, else from its metadata."""
    folders = [folder for folder in file.resolve().parents if folder.name == "sglang"]
    if not folders:
        return UNKNOWN
    try:
        tree = ast.parse((folders[0] / "_version.py").read_bytes())
    except (OSError, SyntaxError, ValueError):
        tree = ast.Module(body=[], type_ignores=[])
    for node in tree.body:
        names = {target.id for target in getattr(node, "targets", ()) if isinstance(target, ast.Name)}
        if isinstance(node, ast.Assign) and "__version__" in names and isinstance(node.value, ast.Constant):
            return str(node.value.value)
    beside = sorted(folders[0].parent.glob("sglang-*.dist-info"))
    if len(beside) == 1:
        return beside[0].name.removeprefix("sglang-").removesuffix(".dist-info")
    try:
        return version("sglang")
    except PackageNotFoundError:
        return UNKNOWN


def load(target: str, settings: Settings, tensors: str = "plain") -> Loaded:
    """Load SGLang's file alone.

    Args:
        target: see `find`.
        settings: what its runtime context says.
        tensors: `plain`: a stand-in for torch; `torch`: the file imports torch itself.

    Raises:
        NotADelayer: there is no such file, it cannot be imported, or it has no PrefillDelayer.
    """
    file = find(target)
    name = f"onbeat_sglang_{abs(hash((str(file.resolve()), settings, tensors))):x}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise NotADelayer(f"{file} cannot be imported; it must be a Python file")
    module = importlib.util.module_from_spec(spec)
    with _stand_ins(_modules(settings, tensors)):
        sys.modules[name] = module  # dataclasses look their module up
        try:
            spec.loader.exec_module(module)
        except ModuleNotFoundError as error:
            raise NotADelayer(
                f"{file} needs the module {error.name!r}, which is not installed; "
                "install it, or run with --tensors plain, which needs none"
            ) from error
        except Exception as error:
            raise NotADelayer(f"{file} cannot be imported: {where_raised(error)}") from error
    for wanted in ("PrefillDelayer", "PrefillDelayerSinglePassExecutor"):
        if not isinstance(getattr(module, wanted, None), type):
            raise NotADelayer(f"{file} has no class {wanted}; give SGLang's {PLACE}, or MODULE:CLASS")
    clock = Clock()
    module.time = clock  # type: ignore[attr-defined]  # the module's own name for the clock
    logging.getLogger(name).setLevel(logging.WARNING)
    return Loaded(module, file, version_of(file), clock, tensors)


def parallel(settings: Settings) -> SimpleNamespace:
    """Return what the delayer asks of the parallel layout: data-parallel attention, one rank a row."""
    group = SimpleNamespace(
        device_group=plain.Nothing("device group"), cpu_group=plain.Nothing("process group"), device="cpu"
    )
    return SimpleNamespace(
        num_dp_ranks=settings.ranks, attn_dp_enabled=True, attn_cp_size=1, attn_tp_size=1, tp_group=group
    )


def arguments(settings: Settings) -> SimpleNamespace:
    """Return what the delayer asks of the server arguments."""
    return SimpleNamespace(
        enable_dp_attention=True,
        disaggregation_mode="null",
        disable_overlap_schedule=False,
        prefill_delayer_queue_min_ratio=settings.queue_min_ratio,
        prefill_delayer_max_delay_ms=settings.max_delay_ms,
        prefill_delayer_max_delay_passes=settings.max_delay_passes,
        prefill_delayer_token_usage_low_watermark=settings.token_usage_low_watermark,
        prefill_max_requests=None,
    )


class _Off:
    """Environment settings, all of them off."""

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(get=lambda: False)


def _modules(settings: Settings, tensors: str) -> dict[str, ModuleType]:
    names = ("", ".srt", ".srt.utils", ".srt.environ", ".srt.distributed", ".srt.distributed.utils")
    modules = {f"sglang{name}": plain.StandIn(f"sglang{name}") for name in (*names, ".srt.runtime_context")}
    for module in modules.values():
        module.__path__ = []  # packages: whatever else is imported below them is told as missing
    offered: dict[str, dict[str, Any]] = {
        "sglang.srt.utils": {"get_bool_env_var": lambda name, default="false": False},
        "sglang.srt.environ": {"envs": _Off()},
        "sglang.srt.runtime_context": {
            "get_schedule": lambda: arguments(settings),
            "get_parallel": lambda: parallel(settings),
        },
    }
    for name, values in offered.items():
        vars(modules[name]).update(values)
    stand_ins: dict[str, ModuleType] = dict(modules)
    if tensors == "plain":
        stand_ins["torch"] = plain.torch()
    return stand_ins


@contextmanager
def _stand_ins(modules: dict[str, ModuleType]) -> Iterator[None]:
    """Put modules in the place of real ones while a file is imported, an installed sglang's included."""
    hidden = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "sglang"}
    hidden |= {name: sys.modules[name] for name in modules if name in sys.modules}
    for name in hidden:
        del sys.modules[name]
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            sys.modules.pop(name, None)
        sys.modules.update(hidden)
