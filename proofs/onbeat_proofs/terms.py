"""Integers and truth values of a symbolic run.

An `Int` is a linear term over the run's variables; a `Bool` is a condition on terms, kept in one normal form, so that
`a > b` and `not a <= b` are the same question. Both stand where ordinary Python code expects ints and bools. The truth
test of a `Bool` asks the run, which forks there; whatever cannot be put as a linear term raises `NotSymbolic`.

A literal is a condition or its negation as a number: 2 * index, plus 1 for the negation.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd, inf
from typing import Any, NamedTuple, NoReturn

from onbeat_spec.errors import NotSymbolic

Parts = tuple[tuple[int, int], ...]
"""(variable, coefficient) pairs of a linear term without its constant, by variable; no coefficient is 0."""

Interval = tuple[float, float]
"""Least and greatest value, both inclusive."""

EVERYTHING: Interval = (-inf, inf)


class Condition(NamedTuple):
    """A row (a linear form, first coefficient positive, gcd 1) is at most, or exactly, a value."""

    row: int
    parts: Parts
    exact: bool
    value: int


class Model(dict[int, int]):
    """Values of a run's variables; booleans are 0 and 1.

    Args:
        space: the space of the variables.
        given: values of free variables. A missing one has the value nearest to 0; quotients follow from the others.
    """

    def __init__(self, space: Space, given: dict[int, int]) -> None:
        super().__init__(given)
        self.space = space
        self.given = given

    def __missing__(self, variable: int) -> int:
        quotient = self.space.quotients.get(variable)
        if quotient is None:
            low, high = self.space.domains[variable]
            value = int(min(max(0, low), high))
        else:
            parts, const, divisor = quotient
            value = (const + sum([factor * self[v] for v, factor in parts])) // divisor
        self[variable] = value
        return value

    def changed(self, values: dict[int, int]) -> Model:
        """Return this model with other values for some free variables."""
        return Model(self.space, {**self.given, **values})


class Space:
    """The variables of a run, every term and condition made of them (each once), and what the present path knows.

    Args:
        decide: told a literal whose truth the path does not know yet, settles it.
    """

    def __init__(self, decide: Callable[[int], bool]) -> None:
        self.decide = decide
        self.known: dict[int | str, Any] = {}
        """Truth of literals on this path; the run keeps its picks here too, by name."""
        self.bounds: dict[int, Interval] = {}
        """Interval of each row, as far as this path has narrowed it."""
        self.names: list[str] = []
        self.domains: list[Interval] = []
        self.flags: set[int] = set()
        """Boolean variables; their domain is 0 and 1."""
        self.quotients: dict[int, tuple[Parts, int, int]] = {}
        """Variable q = (parts + const) // divisor: (parts, const, divisor)."""
        self.conditions: list[Condition] = []
        self.bools: list[Bool] = []
        """The truth value of each literal."""
        self._literals: dict[tuple[int, bool, int], int] = {}
        self._terms: dict[tuple[Parts, int], Int] = {}
        self._rows: dict[Parts, int] = {}
        self._base: dict[int, Interval] = {}
        """Interval of each row on any path: from domains, and from what // means."""
        self._divided: dict[tuple[Parts, int, int], Int] = {}

    # Making things.

    def variable(self, name: str, low: float = -inf, high: float = inf) -> Int:
        """Make an integer variable."""
        parts = ((len(self.names), 1),)
        self.names.append(name)
        self.domains.append((low, high))
        self._base[self._row(parts)] = (low, high)
        term = self._terms[parts, 0] = Int(self, parts, 0)
        return term

    def flag(self, name: str) -> Bool:
        """Make a boolean variable."""
        self.flags.add(len(self.names))
        is_true = self.at_most(-self.variable(name, 0, 1), -1)
        assert isinstance(is_true, Bool)
        return is_true

    def term(self, parts: Parts, const: int) -> Int | int:
        """Return a term; a plain int if nothing in it varies."""
        if not parts:
            return const
        term = self._terms.get((parts, const))
        if term is None:
            term = self._terms[parts, const] = Int(self, parts, const)
        return term

    def at_most(self, term: Int | int, value: int) -> Bool | bool:
        """Return whether term <= value."""
        if not isinstance(term, Int):
            return term <= value
        parts, scale = self._normal(term.parts)
        value -= term.const
        if scale > 0:
            return self.bools[self._literal(parts, False, value // scale)]
        # row * scale <= value  <=>  not row <= ceil(value / scale) - 1, for a negative scale.
        return self.bools[self._literal(parts, False, -(value // -scale) - 1) ^ 1]

    def equal(self, term: Int | int, value: int) -> Bool | bool:
        """Return whether term == value."""
        if not isinstance(term, Int):
            return term == value
        parts, scale = self._normal(term.parts)
        value -= term.const
        return value % scale == 0 and self.bools[self._literal(parts, True, value // scale)]

    def quotient(self, term: Int, divisor: int) -> Int | int:
        """Return term // divisor, for a positive divisor."""
        whole, const = divmod(term.const, divisor)
        outside = self.term(tuple([(v, factor // divisor) for v, factor in term.parts if factor % divisor == 0]), whole)
        inside = [(v, factor) for v, factor in term.parts if factor % divisor]
        if not inside:
            return outside
        common = gcd(divisor, *[factor for _, factor in inside])
        key = (tuple([(v, factor // common) for v, factor in inside]), const // common, divisor // common)
        quotient = self._divided.get(key)
        if quotient is None:
            quotient = self._divided[key] = self._define(*key)
        return quotient + outside

    def _define(self, parts: Parts, const: int, divisor: int) -> Int:
        """Make the variable (parts + const) // divisor."""
        quotient = self.variable(f"({self.show(parts, const)}) // {divisor}")
        variable = quotient.parts[0][0]
        self.quotients[variable] = (parts, const, divisor)
        # On every path 0 <= parts + const - divisor * quotient < divisor.
        remainder, scale = self._normal((*parts, (variable, -divisor)))
        ends = sorted((-const // scale, (divisor - 1 - const) // scale))
        self._base[self._row(remainder)] = (ends[0], ends[1])
        return quotient

    def _normal(self, parts: Parts) -> tuple[Parts, int]:
        """Return the row of a linear form, and the number that times the row gives the form back."""
        scale = gcd(*[factor for _, factor in parts])
        if parts[0][1] < 0:
            scale = -scale
        return (parts if scale == 1 else tuple([(v, factor // scale) for v, factor in parts])), scale

    def _row(self, parts: Parts) -> int:
        return self._rows.setdefault(parts, len(self._rows))

    def _literal(self, parts: Parts, exact: bool, value: int) -> int:
        row = self._row(parts)
        literal = self._literals.get((row, exact, value))
        if literal is None:
            literal = self._literals[row, exact, value] = 2 * len(self.conditions)
            self.conditions.append(Condition(row, parts, exact, value))
            self.bools += (Bool(self, literal), Bool(self, literal + 1))
        return literal

    # Knowing things. Nothing here may depend on other paths: decisions must mean the same in another process.

    def implied(self, literal: int) -> bool | None:
        """Return what the path says about a literal, as far as the interval of its row tells."""
        value: bool | None = self.known.get(literal)
        if value is None:
            row, _, exact, bound = self.conditions[literal >> 1]
            low, high = self.bounds.get(row) or self._base.get(row, EVERYTHING)
            if high < bound or bound < low or low == high:
                value = low == bound if exact else high <= bound
            elif high > bound or exact:
                return None
            else:
                value = True
            value = value != bool(literal & 1)
            self.known[literal] = value
            self.known[literal ^ 1] = not value
        return value

    def learn(self, literal: int) -> None:
        """Take a literal for true on this path."""
        self.known[literal] = True
        self.known[literal ^ 1] = False
        row, _, exact, bound = self.conditions[literal >> 1]
        low, high = self.bounds.get(row) or self._base.get(row, EVERYTHING)
        if not exact:
            if literal & 1:
                low = max(low, bound + 1)
            else:
                high = min(high, bound)
        elif not literal & 1:
            low = high = bound
        elif low == bound:
            low += 1
        elif high == bound:
            high -= 1
        self.bounds[row] = (low, high)

    def holds(self, literal: int, model: Model) -> bool:
        """Return whether a literal is true in a model."""
        _, parts, exact, bound = self.conditions[literal >> 1]
        value = 0
        for variable, factor in parts:
            value += factor * model[variable]
        return (value == bound if exact else value <= bound) != bool(literal & 1)

    # Showing things.

    def show(self, parts: Parts, const: int) -> str:
        """Return a term as text."""
        text = "".join(
            (" - " if factor < 0 else " + ") + (f"{abs(factor)} * " if abs(factor) > 1 else "") + self.names[variable]
            for variable, factor in parts
        )
        if const:
            text += f" - {-const}" if const < 0 else f" + {const}"
        return text[3:] if text.startswith(" + ") else "-" + text[3:]


# --- What stands for ints and bools --------------------------------------------------------------------------------


def _refusing(what: str) -> Any:
    """Return a method that says what cannot be done with a symbolic value."""

    def method(self: Int | Bool, *others: object) -> NoReturn:
        raise NotSymbolic(
            f"{what} cannot be run symbolically: {self!r} has no single value here; a symbolic int takes part in +, -, "
            "comparisons, and *, // and % by concrete ints (positive ones for // and %)"
        )

    return method


def _remembered(sign: str, make: Callable[[Int, Any], Any]) -> Any:
    """Return a method of `Int` that makes each result once: a run meets the same terms thousands of times."""
    refuse = _refusing(sign)

    def method(self: Int, other: Any) -> Any:
        kind = type(other)
        if kind is int:
            key = (sign, other)
        elif kind is Int:
            key = (sign, other.token)
        elif kind is bool:
            return method(self, int(other))
        elif sign in ("==", "!=") and not isinstance(other, float | complex | Bool):
            return NotImplemented
        else:
            return refuse(self, other)
        found = self.memo.get(key)
        if found is None:
            if kind is Int and other.space is not self.space:
                raise NotSymbolic(f"{self!r} and {other!r} belong to different runs; make both with the same context")
            found = self.memo[key] = make(self, other)
        return found

    return method


def _sum(self: Int, other: Int | int, sign: int) -> Int | int:
    """Return self + sign * other."""
    if not isinstance(other, Int):
        return self.space.term(self.parts, self.const + sign * other)
    factors = dict(self.parts)
    for variable, factor in other.parts:
        factors[variable] = factors.get(variable, 0) + sign * factor
    parts = tuple(sorted([part for part in factors.items() if part[1]]))
    return self.space.term(parts, self.const + sign * other.const)


def _product(self: Int, other: Int | int) -> Int | int:
    if isinstance(other, Int):
        _refusing("multiplication by a symbolic int")(self)
    parts = tuple([(variable, factor * other) for variable, factor in self.parts]) if other else ()
    return self.space.term(parts, self.const * other)


def _quotient(self: Int, other: Int | int) -> Int | int:
    if isinstance(other, Int) or other < 0:
        _refusing("// or % by a symbolic or negative int")(self)
    if other == 0:
        raise ZeroDivisionError("integer division or modulo by zero")
    return self.space.quotient(self, other)


def _unequal(self: Int, other: Int | int) -> Bool | bool:
    equal = self.space.equal(_sum(self, other, -1), 0)
    return not equal if isinstance(equal, bool) else ~equal


class Int:
    """A symbolic integer: a linear term over a run's variables. Immutable.

    Raises:
        NotSymbolic: it was used in a way that has no linear term: as an index, a dictionary key or a range, in a
            product with another one, in bit operations, as a float.
    """

    __slots__ = ("const", "memo", "parts", "space", "token")

    def __init__(self, space: Space, parts: Parts, const: int) -> None:
        self.space = space
        self.parts = parts
        self.const = const
        self.memo: dict[tuple[str, object], Any] = {}
        self.token = object()
        """Stands for this term in keys of `memo`; no int equals it."""

    __add__ = __radd__ = _remembered("+", lambda a, b: _sum(a, b, 1))
    __sub__ = _remembered("-", lambda a, b: _sum(a, b, -1))
    __rsub__ = _remembered("reversed -", lambda a, b: _sum(_product(a, -1), b, 1))
    __mul__ = __rmul__ = _remembered("*", _product)
    __floordiv__ = _remembered("//", _quotient)
    __mod__ = _remembered("%", lambda a, b: a - _quotient(a, b) * b)
    __divmod__ = _remembered("divmod()", lambda a, b: (a // b, a % b))
    __le__ = _remembered("<=", lambda a, b: a.space.at_most(_sum(a, b, -1), 0))
    __lt__ = _remembered("<", lambda a, b: a.space.at_most(_sum(a, b, -1), -1))
    __ge__ = _remembered(">=", lambda a, b: a.space.at_most(b - a, 0))
    __gt__ = _remembered(">", lambda a, b: a.space.at_most(b - a, -1))
    __eq__ = _remembered("==", lambda a, b: a.space.equal(_sum(a, b, -1), 0))
    __ne__ = _remembered("!=", _unequal)

    def __neg__(self) -> Any:
        return self * -1

    def __pos__(self) -> Int:
        return self

    def __bool__(self) -> bool:
        return bool(self != 0)

    def __repr__(self) -> str:
        return self.space.show(self.parts, self.const)


class Bool:
    """A symbolic truth value. `bool()`, `not`, `and`, `or`, `if` fork the run; `~` does not.

    Raises:
        NotSymbolic: it was used as a number, an index or a dictionary key.
    """

    __slots__ = ("literal", "space")

    def __init__(self, space: Space, literal: int) -> None:
        self.space = space
        self.literal = literal

    def __bool__(self) -> bool:
        value: bool | None = self.space.known.get(self.literal)
        return self.space.decide(self.literal) if value is None else value

    def __invert__(self) -> Bool:
        return self.space.bools[self.literal ^ 1]

    def __and__(self, other: Bool | bool) -> Bool | bool:
        return other if self else False

    def __or__(self, other: Bool | bool) -> Bool | bool:
        return True if self else other

    __rand__, __ror__ = __and__, __or__

    def __eq__(self, other: object) -> Any:
        if isinstance(other, Bool):
            if self.literal >> 1 == other.literal >> 1:
                return self.literal == other.literal
            return other if self else ~other
        if isinstance(other, bool):
            return self if other else ~self
        return _refusing("comparison with a number")(self) if isinstance(other, Int | int | float) else NotImplemented

    def __ne__(self, other: object) -> Any:
        equal = self == other
        return ~equal if isinstance(equal, Bool) else not equal

    def __repr__(self) -> str:
        _, parts, exact, bound = self.space.conditions[self.literal >> 1]
        negated = self.literal & 1
        if parts[0][0] in self.space.flags and len(parts) == 1:
            return self.space.names[parts[0][0]] if negated else f"not {self.space.names[parts[0][0]]}"
        sign = ("!=" if negated else "==") if exact else (">" if negated else "<=")
        return f"{self.space.show(parts, 0)} {sign} {bound}"


_CONVERSIONS = {
    "hash": "use as a dictionary key or in a set",
    "index": "use as an index, in range() or as a length",
    "int": "int()",
    "float": "float()",
    "complex": "complex()",
    "round": "round()",
    "trunc": "trunc()",
    "floor": "floor()",
    "ceil": "ceil()",
    "abs": "abs()",
}
_OPERATIONS = {"pow": "**", "truediv": "/", "matmul": "@", "lshift": "<<", "rshift": ">>", "xor": "^"}
_OF_INTS_ONLY = {"and": "&", "or": "|"}
_OF_BOOLS_NEITHER = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%", "divmod": "divmod()"}


def _format(self: Int | Bool, spec: str) -> str:
    """Text for messages; the value itself cannot be formatted."""
    return _refusing(f"formatting as {spec!r}")(self) if spec else repr(self)  # type: ignore[no-any-return]


for _class, _operations in (
    (Int, _OPERATIONS | _OF_INTS_ONLY | {"invert": "~"}),
    (Bool, _OPERATIONS | _OF_BOOLS_NEITHER | {"neg": "-", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}),
):
    _class.__format__ = _format  # type: ignore[assignment, method-assign]
    for _name, _what in (_CONVERSIONS | _operations).items():
        for _prefix in ("__", "__r"):
            if f"{_prefix}{_name}__" not in vars(_class) or _name == "hash":
                setattr(_class, f"{_prefix}{_name}__", _refusing(_what))
for _name in ("floordiv", "mod", "divmod"):
    setattr(Int, f"__r{_name}__", _refusing("// or % by a symbolic int"))
