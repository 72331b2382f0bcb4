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


class Condition(NamedTuple):
    """A linear form, its first coefficient positive and the gcd of all 1, is at most, or exactly, a value."""

    parts: Parts
    exact: bool
    value: int


class Assignment(dict[int, int]):
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

    def changed(self, values: dict[int, int]) -> Assignment:
        """Return this model with other values for some free variables."""
        return Assignment(self.space, {**self.given, **values})


class Space:
    """The variables of a run, every term and condition made of them (each once), and what the present path has settled.

    Args:
        decide: told a literal that the path has not settled, settles it.
    """

    def __init__(self, decide: Callable[[int], bool]) -> None:
        self.decide = decide
        self.known: dict[int | str, Any] = {}
        """Truth of literals on this path; the run keeps its picks here too, by name."""
        self.names: list[str] = []
        self.domains: list[tuple[float, float]] = []
        """Least and greatest value of each variable, both inclusive."""
        self.flags: set[int] = set()
        """Boolean variables; their domain is 0 and 1."""
        self.quotients: dict[int, tuple[Parts, int, int]] = {}
        """(parts, const, divisor) of each variable that stands for (parts + const) // divisor."""
        self.conditions: list[Condition] = []
        self.bools: list[Bool] = []
        """The truth value of each literal."""
        self._literals: dict[Condition, int] = {}
        self._terms: dict[tuple[Parts, int], Int] = {}
        self._divided: dict[tuple[Parts, int, int], Int] = {}

    def variable(self, name: str, low: float = -inf, high: float = inf) -> Int:
        """Make an integer variable."""
        self.names.append(name)
        self.domains.append((low, high))
        parts = ((len(self.names) - 1, 1),)
        term = self._terms[parts, 0] = Int(self, parts, 0)
        return term

    def flag(self, name: str) -> Bool:
        """Make a boolean variable."""
        self.flags.add(len(self.names))
        true = self.variable(name, 0, 1) > 0
        assert isinstance(true, Bool)
        return true

    def term(self, parts: Parts, const: int) -> Int | int:
        """Return a term; a plain int if nothing in it varies."""
        if not parts:
            return const
        term = self._terms.get((parts, const))
        if term is None:
            term = self._terms[parts, const] = Int(self, parts, const)
        return term

    def condition(self, term: Int | int, exact: bool) -> Bool | bool:
        """Return whether a term is exactly 0, or at most 0."""
        if not isinstance(term, Int):
            return term == 0 if exact else term <= 0
        scale = gcd(*[factor for _, factor in term.parts])
        if exact and term.const % scale:
            return False
        value, negated = -term.const // scale, 0
        if term.parts[0][1] < 0:
            # -form <= value is not form <= -value - 1
            scale, value, negated = -scale, -value if exact else -value - 1, not exact
        parts = term.parts if scale == 1 else tuple([(v, factor // scale) for v, factor in term.parts])
        condition = Condition(parts, exact, value)
        literal = self._literals.get(condition)
        if literal is None:
            literal = self._literals[condition] = len(self.bools)
            self.conditions.append(condition)
            self.bools += (Bool(self, literal), Bool(self, literal + 1))
        return self.bools[literal + negated]

    def quotient(self, term: Int, divisor: int) -> Int | int:
        """Return term // divisor, for a positive divisor."""
        whole, const = divmod(term.const, divisor)
        outside = self.term(tuple([(v, factor // divisor) for v, factor in term.parts if factor % divisor == 0]), whole)
        inside = [(v, factor) for v, factor in term.parts if factor % divisor]
        if not inside:
            return outside
        common = gcd(divisor, *[factor for _, factor in inside])
        parts = tuple([(v, factor // common) for v, factor in inside])
        const, divisor = const // common, divisor // common
        quotient = self._divided.get((parts, const, divisor))
        if quotient is None:
            quotient = self.variable(f"({self.show(parts, const)}) // {divisor}")
            self._divided[parts, const, divisor] = quotient
            self.quotients[quotient.parts[0][0]] = parts, const, divisor
        return _sum(quotient, outside, 1)

    def learn(self, literal: int) -> None:
        """Take a literal for true on this path."""
        self.known[literal] = True
        self.known[literal ^ 1] = False

    def forget(self, literal: int) -> None:
        """Take back what `learn` did."""
        self.known.pop(literal, None)
        self.known.pop(literal ^ 1, None)

    def holds(self, literal: int, model: Assignment) -> bool:
        """Return whether a literal is true in a model."""
        parts, exact, value = self.conditions[literal >> 1]
        now = 0
        for variable, factor in parts:
            now += factor * model[variable]
        return (now == value if exact else now <= value) != bool(literal & 1)

    def value(self, thing: Any, model: Assignment) -> Any:
        """Return the int or bool that a symbolic value is in a model; anything else as it is."""
        if isinstance(thing, Int):
            return thing.const + sum([factor * model[v] for v, factor in thing.parts])
        return self.holds(thing.literal, model) if isinstance(thing, Bool) else thing

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


def _refusing(operation: str) -> Any:
    """Return a method that says what cannot be done with a symbolic value."""

    def method(self: Int | Bool, *others: object) -> NoReturn:
        raise NotSymbolic(
            f"{operation} cannot be run symbolically: `{self!r}` has no single value here. A symbolic int takes part "
            "in +, -, comparisons with ints, and *, //, % by concrete ints (positive ones for // and %)"
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
        elif isinstance(other, int):
            return method(self, int(other))
        elif sign in ("==", "!=") and not isinstance(other, float | complex | Bool):
            return NotImplemented
        else:
            return refuse(self, other)
        result = self.memo.get(key)
        if result is None:
            if kind is Int and other.space is not self.space:
                raise NotSymbolic(f"`{self!r}` and `{other!r}` belong to different explorations")
            result = self.memo[key] = make(self, other)
        return result

    return method


def _sum(self: Int, other: Int | int, sign: int, more: int = 0) -> Int | int:
    """Return self + sign * other + more."""
    if not isinstance(other, Int):
        return self.space.term(self.parts, self.const + sign * other + more)
    factors = dict(self.parts)
    for variable, factor in other.parts:
        factors[variable] = factors.get(variable, 0) + sign * factor
    parts = tuple(sorted([part for part in factors.items() if part[1]]))
    return self.space.term(parts, self.const + sign * other.const + more)


def _product(self: Int, other: Int | int) -> Int | int:
    if isinstance(other, Int):
        return _refusing("multiplication by a symbolic int")(self)  # type: ignore[no-any-return]
    parts = tuple([(variable, factor * other) for variable, factor in self.parts]) if other else ()
    return self.space.term(parts, self.const * other)


def _quotient(self: Int, other: Int | int) -> Int | int:
    if isinstance(other, Int) or other < 0:
        return _refusing("// or % by a symbolic or negative int")(self)  # type: ignore[no-any-return]
    if other == 0:
        raise ZeroDivisionError("integer division or modulo by zero")
    return self.space.quotient(self, other)


def _negation(truth: Bool | bool) -> Bool | bool:
    return ~truth if isinstance(truth, Bool) else not truth


def _format(self: Int | Bool, spec: str) -> str:
    """Return text for messages; there are no digits to format."""
    return str(_refusing(f"formatting as {spec!r}")(self) if spec else self)


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
        """Stands for this term in the keys of `memo`; no int equals it."""

    __add__ = __radd__ = _remembered("+", lambda a, b: _sum(a, b, 1))
    __sub__ = _remembered("-", lambda a, b: _sum(a, b, -1))
    __rsub__ = _remembered("reversed -", lambda a, b: -a + b)
    __mul__ = __rmul__ = _remembered("*", _product)
    __floordiv__ = _remembered("//", _quotient)
    __mod__ = _remembered("%", lambda a, b: a - _quotient(a, b) * b)
    __divmod__ = _remembered("divmod()", lambda a, b: (a // b, a % b))
    __le__ = _remembered("<=", lambda a, b: a.space.condition(_sum(a, b, -1), False))
    __lt__ = _remembered("<", lambda a, b: a.space.condition(_sum(a, b, -1, 1), False))
    __ge__ = _remembered(">=", lambda a, b: _negation(a < b))
    __gt__ = _remembered(">", lambda a, b: _negation(a <= b))
    __eq__ = _remembered("==", lambda a, b: a.space.condition(_sum(a, b, -1), True))
    __ne__ = _remembered("!=", lambda a, b: _negation(a == b))
    __hash__ = _refusing("use as a dictionary key or in a set")
    __format__ = _format

    def __neg__(self) -> Any:
        return self * -1

    def __bool__(self) -> bool:
        return bool(self != 0)

    def __repr__(self) -> str:
        return self.space.show(self.parts, self.const)


class Bool:
    """A symbolic truth value. `bool()`, `not`, `and`, `or`, `if`, `&`, `|` fork the run; `~` does not.

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
        if not isinstance(other, Bool | int | Int | float):
            return NotImplemented
        if not isinstance(other, Bool | bool):
            return _refusing("comparison of a truth value with a number")(self)
        if isinstance(other, bool):
            return self if other else ~self
        return other if self else ~other

    def __ne__(self, other: object) -> Any:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else _negation(equal)

    __hash__ = _refusing("use as a dictionary key or in a set")
    __format__ = _format

    def __repr__(self) -> str:
        parts, exact, value = self.space.conditions[self.literal >> 1]
        negated = self.literal & 1
        if parts[0][0] in self.space.flags and len(parts) == 1:
            return self.space.names[parts[0][0]] if negated else f"not {self.space.names[parts[0][0]]}"
        sign = ("!=" if negated else "==") if exact else (">" if negated else "<=")
        return f"{self.space.show(parts, 0)} {sign} {value}"


_CONVERSIONS = {"index": "use as an index, as a length or in range()"} | {
    name: f"{name}()" for name in ("int", "float", "complex", "round", "trunc", "floor", "ceil", "abs")
}
_BITS = {"lshift": "<<", "rshift": ">>", "xor": "^", "pow": "**", "truediv": "/", "matmul": "@"}
_REFUSED: dict[type, tuple[dict[str, str], dict[str, str]]] = {
    Int: (_CONVERSIONS | {"invert": "~"}, _BITS | {"and": "&", "or": "|"}),
    Bool: (
        _CONVERSIONS | {"neg": "-", "lt": "<", "le": "<=", "gt": ">", "ge": ">="},
        _BITS | {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%", "divmod": "divmod()"},
    ),
}
for _class, (_unary, _binary) in _REFUSED.items():
    for _name, _what in (_unary | _binary).items():
        setattr(_class, f"__{_name}__", _refusing(_what))
    for _name, _what in _binary.items():
        setattr(_class, f"__r{_name}__", _refusing(_what))
for _name in ("floordiv", "mod", "divmod"):
    setattr(Int, f"__r{_name}__", _refusing("// or % by a symbolic int"))
