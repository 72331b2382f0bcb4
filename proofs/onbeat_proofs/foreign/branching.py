"""Independent copies of a scheduler, much faster than `copy.deepcopy` makes them.

Built-in containers and plain objects (attributes and slots, nothing of their own to say about copying) are copied
here; everything else by `copy.deepcopy`, with the same memo. Values that nobody changes are shared: numbers, texts,
enumerations, configurations, policies, and the record of a step, which is final once `schedule` returned it. Functions
are shared too, unless they remember a part of what is copied.
"""

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from copy import deepcopy
from enum import Enum
from operator import attrgetter
from types import BuiltinFunctionType, CellType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, TypeVar

from onbeat_spec.config import Config
from onbeat_spec.policy import Policy
from onbeat_spec.records import Step

Memo = dict[int, Any]
"""Copies by the identity of their originals, as `copy.deepcopy` keeps them."""
Copier = Callable[[Any, Memo], Any]
T = TypeVar("T")

_SHARED: set[type] = {int, bool, float, complex, str, bytes, type(None), BuiltinFunctionType, ModuleType, type, range}
_shared_bases: list[type] = [Enum, Config, Policy, Step, type]
_new: Any = vars(object)["__new__"]
_HEAP_TYPE = 1 << 9
"""Py_TPFLAGS_HEAPTYPE: the class was made by a class statement, so no C code keeps state of its own in it."""
_COPY_HOOKS = (
    *("__reduce_ex__", "__reduce__", "__getstate__", "__setstate__"),
    *("__deepcopy__", "__getnewargs__", "__getnewargs_ex__"),
)


def branch(value: T, memo: Memo) -> T:
    """Return an independent copy of `value`; what was copied with the same memo before is not copied again."""
    cls = type(value)
    if cls in _SHARED:
        return value
    copied = memo.get(id(value))
    if copied is None:
        copier = _COPIERS.get(cls) or _learn(cls)
        copied = copier(value, memo)
    result: T = copied
    return result


def share(*classes: type) -> None:
    """From here on values of these classes, and of classes derived from them, are shared: nobody changes them."""
    _shared_bases.extend(classes)
    for cls in [cls for cls in _COPIERS if issubclass(cls, classes)]:
        del _COPIERS[cls]


def learn(cls: type, copier: Copier) -> None:
    """From here on values of exactly this class are copied by a function of their own."""
    _COPIERS[cls] = copier


def _learn(cls: type) -> Copier:
    """Choose how values of a class met for the first time are copied."""
    copier: Copier
    if issubclass(cls, tuple(_shared_bases)):
        _SHARED.add(cls)
        return _share
    if issubclass(cls, tuple) and hasattr(cls, "_make"):
        copier = _copy_named_tuple
    elif issubclass(cls, deque) and cls.__reduce__ is deque.__reduce__ and cls.__copy__ is deque.__copy__:
        copier = _deque_copier(cls)
    elif _is_plain(cls):
        copier = _object_copier(cls)
    else:
        copier = deepcopy
    _COPIERS[cls] = copier
    return copier


def _share(value: Any, memo: Memo) -> Any:
    return value


def _is_plain(cls: type) -> bool:
    """Whether instances consist of their attributes and slots, and leave copying to Python."""
    try:
        _new(cls)
    except TypeError:  # made in C, and particular about it
        return False
    return all(getattr(cls, name, None) is getattr(object, name, None) for name in _COPY_HOOKS) and all(
        base is object or base.__flags__ & _HEAP_TYPE for base in cls.__mro__
    )


def _object_copier(cls: type) -> Copier:
    """Return a function that copies the instances of one class slot by slot and attribute by attribute."""
    slots = [
        (name, vars(base)[name])
        for base in cls.__mro__
        for name in vars(base)
        if isinstance(vars(base)[name], MemberDescriptorType)
    ]
    setters = [descriptor.__set__ for _, descriptor in slots]
    has_dict = bool(cls.__dictoffset__)
    get = attrgetter(*(name for name, _ in slots)) if len(slots) > 1 else None

    def copier(value: Any, memo: Memo) -> Any:
        new: Any = object.__new__(cls)
        memo[id(value)] = new
        shared = _SHARED
        if get is not None:
            try:
                for assign, item in zip(setters, get(value), strict=True):
                    assign(new, item if type(item) in shared else branch(item, memo))
            except AttributeError:  # a slot that is not set
                _copy_slots(slots, value, new, memo)
        elif slots:
            _copy_slots(slots, value, new, memo)
        if has_dict:
            attributes = new.__dict__
            for name, item in value.__dict__.items():
                attributes[name] = item if type(item) in shared else branch(item, memo)
        return new

    return copier


def _copy_slots(slots: list[tuple[str, Any]], value: Any, new: Any, memo: Memo) -> None:
    for _, descriptor in slots:
        try:
            item = descriptor.__get__(value)
        except AttributeError:
            continue
        descriptor.__set__(new, branch(item, memo))


def _copy_list(value: list[Any], memo: Memo) -> list[Any]:
    flat = _SHARED.issuperset(map(type, value))
    copied = value[:] if flat else []
    memo[id(value)] = copied
    if not flat:
        for item in value:
            copied.append(branch(item, memo))
    return copied


def _copy_dict(value: dict[Any, Any], memo: Memo) -> dict[Any, Any]:
    if _SHARED.issuperset(map(type, value)):
        if _SHARED.issuperset(map(type, value.values())):
            memo[id(value)] = new = value.copy()
            return new
        memo[id(value)] = new = type(value)()
        for key, item in value.items():
            new[key] = branch(item, memo)
        return new
    memo[id(value)] = new = type(value)()
    for key, item in value.items():
        new[branch(key, memo)] = branch(item, memo)
    return new


def _copy_set(value: set[Any], memo: Memo) -> set[Any]:
    memo[id(value)] = new = {branch(item, memo) for item in value}
    return new


def _copy_deque(value: deque[Any], memo: Memo) -> deque[Any]:
    new: deque[Any] = deque(maxlen=value.maxlen)
    memo[id(value)] = new
    for item in value:
        new.append(branch(item, memo))
    return new


def _deque_copier(cls: type) -> Copier:
    """Return a function that copies the instances of a class derived from `deque`."""

    def copier(value: Any, memo: Memo) -> Any:
        new: Any = cls.__new__(cls)  # type: ignore[call-overload]  # mypy takes cls for a metaclass
        memo[id(value)] = new
        new.extend([branch(item, memo) for item in value])
        for name, item in getattr(value, "__dict__", {}).items():
            new.__dict__[name] = branch(item, memo)
        return new

    return copier


def _copy_defaults(value: Any, memo: Memo) -> Any:
    new: Any = defaultdict(value.default_factory)
    memo[id(value)] = new
    for key, item in value.items():
        new[branch(key, memo)] = branch(item, memo)
    return new


def _copy_tuple(value: tuple[Any, ...], memo: Memo) -> tuple[Any, ...]:
    if _SHARED.issuperset(map(type, value)):
        return value
    return tuple([branch(item, memo) for item in value])


def _copy_named_tuple(value: Any, memo: Memo) -> Any:
    if _SHARED.issuperset(map(type, value)):
        return value
    return type(value)._make([branch(item, memo) for item in value])


def _copy_frozenset(value: frozenset[Any], memo: Memo) -> frozenset[Any]:
    if _SHARED.issuperset(map(type, value)):
        return value
    return frozenset([branch(item, memo) for item in value])


def _copy_function(value: FunctionType, memo: Memo) -> FunctionType:
    """Let a function that remembers what is copied remember the copies: a wrapper would change the original."""
    cells = value.__closure__
    if not cells or all(_remembers_nothing(cell) for cell in cells):
        return value
    fresh = tuple(CellType() for _ in cells)
    new = FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__, fresh)
    memo[id(value)] = new
    new.__kwdefaults__ = value.__kwdefaults__
    new.__dict__.update(value.__dict__)
    for old, cell in zip(cells, fresh, strict=True):
        if not _is_empty(old):
            cell.cell_contents = branch(old.cell_contents, memo)
    return new


def _remembers_nothing(cell: CellType) -> bool:
    """Whether what a function remembers is shared by all copies."""
    if _is_empty(cell):
        return True
    value = cell.cell_contents
    return type(value) in _SHARED or (type(value) is FunctionType and not value.__closure__)


def _is_empty(cell: CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return True
    return False


def _copy_method(value: MethodType, memo: Memo) -> MethodType:
    return MethodType(value.__func__, branch(value.__self__, memo))


_COPIERS: dict[type, Copier] = {
    FunctionType: _copy_function,
    MethodType: _copy_method,
    list: _copy_list,
    dict: _copy_dict,
    OrderedDict: _copy_dict,
    defaultdict: _copy_defaults,
    set: _copy_set,
    deque: _copy_deque,
    tuple: _copy_tuple,
    frozenset: _copy_frozenset,
}
