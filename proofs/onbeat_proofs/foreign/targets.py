"""Classes named on the command line or in a file: `module:Class` and `path/to/file.py:Class`."""

import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from sysconfig import get_path
from traceback import extract_tb
from types import ModuleType

from onbeat_spec.errors import NotAScheduler, OnbeatError

OURS = Path(__file__).resolve().parents[1]
"""The folder of this package."""
STANDARD = Path(get_path("stdlib"))


def load_scheduler(text: str) -> type:
    """Return the scheduler class that `module:Class` or `path/to/file.py:Class` names.

    Raises:
        NotAScheduler: there is no such module or class.
    """
    return load_class(text, "scheduler", NotAScheduler)


def load_class(text: str, label: str, error: type[OnbeatError], base: Path | None = None) -> type:
    """Return the class that `module:Class` or `file.py:Class` names.

    Args:
        text: the name.
        label: what the class is for, in messages.
        error: raised with one line that says what is wrong.
        base: folder that a relative file name starts from; by default the current one, in which modules are also
            looked for.
    """
    module_name, colon, path = text.rpartition(":")
    if not colon or not module_name or not all(part.isidentifier() for part in path.split(".")):
        raise error(f"{label} is {text!r}; it must be module:Class or path/to/file.py:Class")
    if module_name.endswith(".py"):
        module = _from_file((base or Path.cwd()) / module_name, label, error)
    else:
        module = _from_name(module_name, text, label, error)
    value: object = module
    for part in path.split("."):
        if not hasattr(value, part):
            raise error(f"{label} {text!r}: {module_name} has no {path!r}; {_offer(module)}")
        value = getattr(value, part)
    if not isinstance(value, type):
        raise error(f"{label} {text!r} is a {type(value).__name__}; name a class")
    return value


def where_raised(error: BaseException, own: str = "") -> str:
    """Return `TypeName: message at file:line` of the innermost frame, on one line; frames of the file `own` not."""
    message = " ".join(str(error).split())
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__}: {error.msg} at {error.filename}:{error.lineno}"
    frames = [f for f in extract_tb(error.__traceback__) if f.filename != own and not f.filename.startswith("<frozen")]
    return f"{text} at {frames[-1].filename}:{frames[-1].lineno}" if frames else text


def is_ours(error: BaseException) -> bool:
    """Whether an exception was raised by this package, or by what it called of the standard library."""
    for frame in reversed(extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if file.is_relative_to(OURS):
            return True
        standard = file.is_relative_to(STANDARD) and not {"site-packages", "dist-packages"} & {*file.parts}
        if not standard and not frame.filename.startswith("<frozen"):
            return False
    return False


def _from_file(file: Path, label: str, error: type[OnbeatError]) -> ModuleType:
    if not file.is_file():
        raise error(f"{label}: there is no file {file}; give a path relative to where it is named")
    # Under a name of its own, so that classes defined there can be pickled, and never shadow a real module.
    name = f"onbeat_file_{file.stem}_{abs(hash(str(file.resolve()))):x}"
    spec = spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise error(f"{label}: {file} cannot be imported; it must be a Python file")
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as reason:
        del sys.modules[name]
        raise error(f"{label}: {file} cannot be imported: {where_raised(reason)}") from reason
    return module


def _from_name(name: str, text: str, label: str, error: type[OnbeatError]) -> ModuleType:
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.append(here)
    try:
        return import_module(name)
    except ModuleNotFoundError as reason:
        if reason.name and (name == reason.name or name.startswith(f"{reason.name}.")):
            raise error(
                f"{label} {text!r}: there is no module {reason.name!r}; install it or run where it is"
            ) from None
        raise error(f"{label} {text!r} cannot be imported: {where_raised(reason)}") from reason
    except (Exception, SystemExit) as reason:
        raise error(f"{label} {text!r} cannot be imported: {where_raised(reason)}") from reason
    finally:
        if added:
            sys.path.remove(here)


def _offer(module: ModuleType) -> str:
    own = [name for name, value in vars(module).items() if isinstance(value, type) and not name.startswith("_")]
    return f"its classes are {', '.join(sorted(own))}" if own else "it has no classes"
