"""The symbolic runner: every input is on exactly one path, and the path says of it what plain Python says."""

import itertools
import math
import pickle
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
from z3 import z3core

from onbeat_proofs.symbolic import Context, explore, frontier, smallest, where
from onbeat_proofs.symbolic.paths import Path
from onbeat_proofs.symbolic.solver import Counters
from onbeat_proofs.symbolic.terms import Assignment, Bool, Int
from onbeat_spec.errors import NotReproduced, NotSymbolic, Undecided

Inputs = dict[str, int]


def model_of(path: Path[Any], inputs: Inputs) -> Assignment:
    """The inputs in the path's own numbering; names that the path never made are left out."""
    space = path._space
    return Assignment(space, {space.names.index(name): value for name, value in inputs.items() if name in space.names})


def takes(path: Path[Any], inputs: Inputs) -> bool:
    """Whether these inputs take this path."""
    model = model_of(path, inputs)
    return all(path._space.value(condition, model) for condition in path.conditions)


def outcome(path: Path[Any], inputs: Inputs) -> Any:
    """The path's result (an int, or a tuple of them) for these inputs."""
    model, result = model_of(path, inputs), path.result
    if isinstance(result, tuple):
        return tuple(path._space.value(each, model) for each in result)
    return path._space.value(result, model)


def one_int(low: int | None = None, high: int | None = None) -> tuple[Any, Path[Any]]:
    """A symbolic int outside of any question, and the path that made it."""
    (path,) = explore(lambda ctx: ctx.int("x", low, high))
    return path.result, path


# --- Against plain Python ------------------------------------------------------------------------------------------


class Program:
    """A random program over the ints a, b, c: assignments, branches, bounded loops, early returns."""

    names = ("a", "b", "c")

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.body = self.block(3)

    def expression(self, depth: int) -> tuple[Any, ...]:
        kind = self.random.choice(("name", "name", "const", "+", "-", "*", "//", "%", "neg")) if depth else "name"
        if kind == "name":
            return kind, self.random.choice(self.names)
        if kind == "const":
            return kind, self.random.randint(-5, 5)
        if kind in ("+", "-"):
            return kind, self.expression(depth - 1), self.expression(depth - 1)
        return kind, self.expression(depth - 1), self.random.randint(-3 if kind == "*" else 1, 4)

    def block(self, depth: int) -> list[tuple[Any, ...]]:
        return [self.statement(depth) for _ in range(self.random.randint(1, 3))]

    def statement(self, depth: int) -> tuple[Any, ...]:
        kind = self.random.choice(("set", "if", "if", "while", "return")) if depth else "set"
        test = (self.random.choice(("<", "<=", "==", "!=", "bool")), self.expression(2), self.expression(1))
        if kind == "set":
            return kind, self.random.choice(self.names), self.expression(2)
        if kind == "return":
            return kind, test, self.expression(2)
        return kind, test, self.block(depth - 1), self.block(depth - 1)

    def value(self, expression: tuple[Any, ...], env: dict[str, Any]) -> Any:
        kind, first, *rest = expression
        if kind == "name":
            return env[first]
        if kind == "const":
            return first
        left = self.value(first, env)
        if kind == "neg":
            return -left
        right = self.value(rest[0], env) if isinstance(rest[0], tuple) else rest[0]
        if kind == "+":
            return left + right
        if kind == "-":
            return left - right
        if kind == "*":
            return left * right
        return left // right if kind == "//" else left % right

    def true(self, test: tuple[Any, ...], env: dict[str, Any]) -> Any:
        sign, left, right = test[0], self.value(test[1], env), self.value(test[2], env)
        if sign == "<":
            return left < right
        if sign == "<=":
            return left <= right
        if sign == "==":
            return left == right
        return left != right if sign == "!=" else left

    def run(self, block: list[tuple[Any, ...]], env: dict[str, Any]) -> Any:
        """Run a block; not None: the program has returned."""
        for kind, first, *rest in block:
            result = None
            if kind == "set":
                env[first] = self.value(rest[0], env)
            elif kind == "return":
                if self.true(first, env):
                    return self.value(rest[0], env)
            elif kind == "if":
                result = self.run(rest[0] if self.true(first, env) else rest[1], env)
            else:
                for _ in range(2):
                    if not self.true(first, env):
                        break
                    result = self.run(rest[0], env)
                    if result is not None:
                        break
            if result is not None:
                return result
        return None

    def __call__(self, a: Any, b: Any, c: Any) -> tuple[Any, ...]:
        env = {"a": a, "b": b, "c": c}
        return self.run(self.body, env), env["a"], env["b"], env["c"]

    def symbolically(self, ctx: Context) -> tuple[Any, ...]:
        return self(ctx.int("a", -4, 4), ctx.int("b", -3, 5), ctx.int("c", 0, 3))

    @staticmethod
    def inputs() -> Iterator[Inputs]:
        for a, b, c in itertools.product(range(-4, 5), range(-3, 6), range(4)):
            yield {"a": a, "b": b, "c": c}


@pytest.mark.parametrize("seed", range(60))
def test_every_input_is_on_one_path_with_pythons_result(seed: int) -> None:
    program = Program(seed)
    counters = Counters()
    paths = list(explore(program.symbolically, max_paths=400, counters=counters))
    assert counters.paths == len(paths)
    for inputs in program.inputs():
        (path,) = [path for path in paths if takes(path, inputs)]
        assert outcome(path, inputs) == program(**inputs)
    for path in paths:
        example = path.model()
        assert takes(path, example)
        assert path.value(path.result[1]) == program(**example)[1]


@pytest.mark.parametrize("seed", range(0, 60, 3))
def test_a_frontier_shares_out_the_paths(seed: int) -> None:
    program = Program(seed)
    whole = {path.decisions for path in explore(program.symbolically)}
    prefixes = frontier(program.symbolically, 6)
    assert len(prefixes) >= min(6, len(whole))
    prefixes = pickle.loads(pickle.dumps(prefixes))
    # Backwards, so that no exploration meets terms in the order in which the frontier met them.
    parts = [{p.decisions for p in explore(program.symbolically, prefix=prefix)} for prefix in reversed(prefixes)]
    assert sum(len(part) for part in parts) == len(whole)
    assert set().union(*parts) == whole
    assert len([p.decisions for p in explore(program.symbolically, prefix=prefixes)]) == len(whole)


@pytest.mark.parametrize("divisor", [1, 2, 3, 16])
@pytest.mark.parametrize(("factor", "const"), [(1, 0), (-1, 5), (3, -7), (16, 3), (-2, 1)])
def test_division_rounds_down_like_pythons(divisor: int, factor: int, const: int) -> None:
    def divide(ctx: Context) -> tuple[Any, ...]:
        term = ctx.int("x", -40, 40) * factor + const
        return term // divisor, term % divisor, *divmod(term, divisor), -(-term // divisor)

    (path,) = explore(divide)
    for x in range(-40, 41):
        term = x * factor + const
        exact = (term // divisor, term % divisor, *divmod(term, divisor), math.ceil(term / divisor))
        assert outcome(path, {"x": x}) == exact

    def both_agree(ctx: Context) -> bool:
        term = ctx.int("x", -40, 40) * factor + const
        inside: bool = term % divisor < divisor and term // divisor * divisor <= term
        return inside

    assert all(path.result is True or path.value(path.result) for path in explore(both_agree))


# --- Terms and conditions ------------------------------------------------------------------------------------------


def test_what_does_not_vary_is_a_plain_int_or_bool() -> None:
    x, _ = one_int()
    assert type(x - x) is int
    assert type(x * 0) is int
    assert (x + 3) - x == 3
    assert (16 * x + 5) // 16 - x == 0
    assert (16 * x + 5) % 16 == 5
    assert ((x + 3) > x) is True
    assert (2 * x == 2 * x + 1) is False
    assert (2 * x == 7) is False
    assert x != None  # noqa: E711  code under test may ask
    assert (x == "one") is False


def test_one_question_has_one_form() -> None:
    def ask(ctx: Context) -> set[int]:
        a, b = ctx.int("a"), ctx.int("b")
        same = [a > b, ~(a <= b), b < a, ~(b >= a), b - a < 0, b + 1 <= a, 2 * a > 2 * b + 1, a - b >= 1]
        return {condition.literal for condition in same}

    (path,) = explore(ask)
    assert len(path.result) == 1


def test_text_of_values() -> None:
    def show(ctx: Context) -> list[str]:
        a, b, flag = ctx.int("a"), ctx.int("b"), ctx.bool("flag")
        return [f"{a}", repr(3 - 2 * a + b), repr((a + 15) // 16), repr(a > b), repr(a != 3), repr(flag), repr(~flag)]

    (path,) = explore(show)
    assert path.result == ["a", "-2 * a + b + 3", "(a + 15) // 16", "a - b > 0", "a != 3", "flag", "not flag"]


def test_truth_values_work_as_bools() -> None:
    def logic(ctx: Context) -> tuple[bool, ...]:
        p, q = ctx.bool("p"), ctx.bool("q")
        return bool(p & q), bool(p | q), bool(p == q), bool(p != q), bool(True & p), bool(p == True), bool(not p)  # noqa: E712

    paths = list(explore(logic))
    assert len(paths) == 4
    for path in paths:
        p, q = path.model()["p"], path.model()["q"]
        assert path.result == (p and q, p or q, p == q, p != q, p, p, not p)


FORBIDDEN: dict[str, Callable[[Any, Any, Any], Any]] = {
    "times": lambda x, y, flag: x * y,
    "floor division by a symbol": lambda x, y, flag: x // y,
    "of an int": lambda x, y, flag: 7 // x,
    "modulo a symbol": lambda x, y, flag: 7 % y,
    "negative divisor": lambda x, y, flag: x // -2,
    "division": lambda x, y, flag: x / 2,
    "power": lambda x, y, flag: x**2,
    "index": lambda x, y, flag: [1, 2][x],
    "range": lambda x, y, flag: range(x),
    "repetition": lambda x, y, flag: [0] * x,
    "key": lambda x, y, flag: {x: 1},
    "member": lambda x, y, flag: x in {1},
    "key of a truth": lambda x, y, flag: {flag: 1},
    "float": lambda x, y, flag: float(x),
    "float operand": lambda x, y, flag: x + 0.5,
    "float comparison": lambda x, y, flag: x < 1.0,
    "float equality": lambda x, y, flag: x == 1.0,
    "int": lambda x, y, flag: int(x),
    "round": lambda x, y, flag: round(x),
    "abs": lambda x, y, flag: abs(x),
    "bits": lambda x, y, flag: x & 1,
    "shift": lambda x, y, flag: 1 << x,
    "invert": lambda x, y, flag: ~x,
    "format": lambda x, y, flag: f"{x:5d}",
    "truth as a number": lambda x, y, flag: x + flag,
    "sum of truths": lambda x, y, flag: sum([flag, flag]),
    "order of truths": lambda x, y, flag: flag < 2,
    "truth against a number": lambda x, y, flag: flag == 1,
    "number against a truth": lambda x, y, flag: x == flag,
    "truth as an index": lambda x, y, flag: (1, 2)[flag],
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_what_cannot_be_run_symbolically_says_so(name: str) -> None:
    def use(ctx: Context) -> Any:
        x = ctx.int("x", 0, 9)
        assert x < 1  # so that `x < 1.0` below is not taken for what is known already
        return FORBIDDEN[name](x, ctx.int("y"), ctx.bool("flag"))

    with pytest.raises(NotSymbolic, match="cannot be run symbolically") as caught:
        list(explore(use, assume=lambda ctx: [ctx.int("x", 0, 9) < 1]))
    file, line, source = where(caught.value)
    assert file == __file__
    assert line > 0
    assert "lambda x, y, flag:" in source


def test_division_by_zero_is_pythons() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        list(explore(lambda ctx: ctx.int("x", 3) // 0))
    assert caught.value.__notes__ == ["on the path of {'x': 3}"]
    assert where(ValueError()) == ("", 0, "")


def test_values_of_two_explorations_do_not_mix() -> None:
    x, _ = one_int()
    y, _ = one_int()
    with pytest.raises(NotSymbolic, match="different explorations"):
        x + y


# --- Paths ---------------------------------------------------------------------------------------------------------


def test_picks_and_assumptions() -> None:
    def run(ctx: Context) -> tuple[str, bool]:
        mode = ctx.pick("mode", ["fcfs", "priority"])
        x = ctx.int("x", 0, 9)
        ctx.assume(x != 5 if mode == "fcfs" else x == 5)
        assert ctx.pick("mode", ["fcfs", "priority"]) == mode
        return mode, bool(x < 5)

    counters = Counters()
    paths = list(explore(run, assume=lambda ctx: [ctx.int("x", 0, 9) > 2, True], counters=counters))
    assert [path.result for path in paths] == [("fcfs", True), ("fcfs", False), ("priority", False)]
    assert [path.model()["mode"] for path in paths] == ["fcfs", "fcfs", "priority"]
    assert all(path.model()["x"] > 2 for path in paths)
    assert paths[2].decisions == (1, False)
    assert counters.paths == 3
    assert counters.seconds > 0
    for path in paths:
        again = explore(run, assume=lambda ctx: [ctx.int("x", 0, 9) > 2, True], prefix=path.decisions)
        assert [p.decisions for p in again] == [path.decisions]


def test_assumptions_that_contradict_each_other_leave_no_path() -> None:
    counters = Counters()
    assert list(explore(lambda ctx: ctx.assume(ctx.int("x", 0, 3) > 3), counters=counters)) == []
    assert list(explore(lambda ctx: ctx.assume(False), counters=counters)) == []
    assert counters.pruned == 2
    assert counters.paths == 0


def test_variables_keep_their_bounds() -> None:
    with pytest.raises(ValueError, match="has no value"):
        list(explore(lambda ctx: ctx.int("x", 3, 2)))
    with pytest.raises(ValueError, match="was made with bounds"):
        list(explore(lambda ctx: (ctx.int("x", 0, 2), ctx.int("x", 0, 3))))
    with pytest.raises(ValueError, match="was made with bounds"):
        list(explore(lambda ctx: (ctx.int("x", 0, 1), ctx.bool("x"))))


def test_big_numbers() -> None:
    def run(ctx: Context) -> bool:
        return bool(ctx.int("x") * 3 - ctx.int("y") > 10**30)

    paths = {path.result: path.model() for path in explore(run)}
    assert 3 * paths[True]["x"] - paths[True]["y"] > 10**30 >= 3 * paths[False]["x"] - paths[False]["y"]


def test_a_limit_on_paths_is_not_a_pass() -> None:
    with pytest.raises(Undecided, match="more than 2 paths"):
        list(explore(lambda ctx: (bool(ctx.bool("p")), bool(ctx.bool("q"))), max_paths=2))
    assert len(list(explore(lambda ctx: bool(ctx.bool("p")), max_paths=2))) == 2


def test_progress_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(step=0.2)
    monkeypatch.setattr("onbeat_proofs.symbolic.run.perf_counter", lambda: next(clock))
    seen = []
    list(explore(lambda ctx: ctx.pick("n", range(9)), progress=lambda counters: seen.append(counters.paths)))
    assert seen == [3, 6, 9]


@pytest.mark.parametrize("how", ["another question", "none", "a pick", "an assumption"])
def test_a_function_that_remembers_is_found_out(how: str) -> None:
    runs = itertools.count()

    def run(ctx: Context) -> None:
        x = ctx.int("x", 0, 9)
        if next(runs) == 0 or how == "another question":
            assert x != next(runs) + 20
            bool(x < 5)
        elif how == "a pick":
            ctx.pick("n", [1, 2])
        elif how == "an assumption":
            ctx.assume(False)

    with pytest.raises(NotSymbolic, match="something else when it was run again"):
        list(explore(run))


def test_a_prefix_must_fit() -> None:
    for prefix in [(True, True), (0,)]:
        with pytest.raises(NotSymbolic, match="prefix does not fit"):
            list(explore(lambda ctx: bool(ctx.bool("p")), prefix=prefix))
    assert list(explore(lambda ctx: bool(ctx.int("x", 0, 3) > 3), prefix=(True,))) == []


# --- The solver's answers ------------------------------------------------------------------------------------------


def hard(ctx: Context) -> bool:
    """A subset-sum question, beyond what one variable's change or little effort can answer."""
    random = Random(1)
    weights = [random.randint(10**6, 10**7) for _ in range(40)]
    total: Any = sum(weight * ctx.int(f"x{i}", 0, 1) for i, weight in enumerate(weights))
    return bool(total == sum(weights) // 2 + 1)


def test_unknown_is_not_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Undecided, match="Z3 answered unknown"):
        list(explore(hard, effort=10_000))
    monkeypatch.setattr(z3core, "Z3_solver_check", lambda context, solver: 0)
    with pytest.raises(Undecided, match="Z3 answered unknown"):
        list(explore(lambda ctx: bool(ctx.int("x", 0, 3) > 3)))
    with pytest.raises(Undecided, match="Z3 answered unknown"):
        list(explore(lambda ctx: ctx.assume(ctx.int("x", 0, 3) > 3)))


def test_a_wrong_model_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Context, "_repaired", lambda self, model, literal: None)
    monkeypatch.setattr(z3core, "Z3_get_numeral_int64", lambda context, value, cell: True)
    with pytest.raises(NotReproduced, match="please report this"):
        list(explore(lambda ctx: bool(ctx.int("x", 0, 3) > 1)))


def test_reasons_save_queries() -> None:
    def run(ctx: Context) -> None:
        x, y = ctx.int("x", 0, 99), ctx.int("y", 0, 99)
        ctx.pick("n", range(50))
        assert not x > y > x

    counters = Counters()
    list(explore(run, counters=counters))
    assert counters.paths == 100
    assert counters.recalled >= 49
    assert counters.queries < 10


# --- Nested explorations -------------------------------------------------------------------------------------------


def test_nested_paths_do_not_multiply_the_outer_ones() -> None:
    def run(ctx: Context) -> list[int]:
        x, y = ctx.int("x", 0, 9), ctx.int("y", 0, 9)
        side = bool(x < 5)

        def inner() -> str:
            ctx.assume(y > 0)
            return ("small" if x < 3 else "middle" if x < 7 else "large") + ctx.pick("mark", ["!", "?"])

        within = ctx.every(inner)
        for path in within:
            x_now, y_now = path.model()["x"], path.model()["y"]
            assert (x_now < 5) == side
            assert y_now > 0
            assert path.result[:-1] == ("small" if x_now < 3 else "middle" if x_now < 7 else "large")
            assert path.result[-1] == path.model()["mark"]
            assert repr(path.conditions[0]) == ("x <= 4" if side else "x > 4")
        # More decisions after the nested ones: they must not see what is decided later.
        return [len(within), side, bool(y < 5), len(ctx.every(inner))]

    counters = Counters()
    paths = list(explore(run, counters=counters))
    assert sorted(path.result for path in paths) == [[4, s, t, 4] for s in (False, True) for t in (False, True)]
    assert all("mark" not in path.model() for path in paths)
    assert counters.paths == 4
    assert counters.subpaths == 2 * 4 + 4 * 4
    for path in paths:
        assert [p.decisions for p in explore(run, prefix=path.decisions)] == [path.decisions]
    assert set(frontier(run, 4)) == {path.decisions for path in paths}


def test_first_stops_at_a_violation() -> None:
    asked = []

    def run(ctx: Context) -> tuple[Any, Any]:
        x, y = ctx.int("x", 0, 1000), ctx.int("y", 0, 1000)
        ctx.assume(x < y)

        def holds() -> str | None:
            return "equal" if x == y else None

        def fails() -> str | None:
            asked.append(1)
            for bound in (900, 800, 700):
                if x > bound:
                    return f"x > {bound}"
            return None

        return ctx.first(holds), ctx.first(fails)

    (path,) = explore(run)
    assert path.result[0] is None
    found = path.result[1]
    assert found.model()["x"] > int(found.result.split()[-1])
    assert len(asked) == 2
    assert smallest(found) == {"x": int(found.result.split()[-1]) + 1, "y": int(found.result.split()[-1]) + 2}


def test_nested_inside_nested() -> None:
    def run(ctx: Context) -> list[list[int]]:
        x = ctx.int("x", 0, 9)

        def outer() -> list[int]:
            low = bool(x < 5)
            return [int(low), *sorted(path.result for path in ctx.every(lambda: bool(x < 2) + bool(x < 7)))]

        return [path.result for path in ctx.every(outer)]

    (path,) = explore(run)
    assert sorted(path.result) == [[0, 0, 1], [1, 1, 2]]


def test_smallest_example() -> None:
    def run(ctx: Context) -> None:
        x, y, z = ctx.int("x", -(10**9), 10**9), ctx.int("y", 7), ctx.int("z")
        ctx.assume(x + y * 3 >= 1000)
        ctx.assume(z <= -5)
        ctx.assume(ctx.bool("flag"))
        ctx.int("free", 2, 9)
        ctx.pick("mode", ["a"])

    (path,) = explore(run)
    found = smallest(path)
    assert abs(found["x"]) + found["y"] + abs(found["z"]) + found["free"] == 334 + 5 + 2
    assert takes(path, {name: value for name, value in found.items() if name != "mode"})
    assert found["flag"] is True
    assert found["mode"] == "a"
    assert abs(smallest(path, ["x"])["x"]) == 0
    assert takes(path, {n: v for n, v in smallest(path, queries=3).items() if n != "mode"})


# --- A scheduler's loop ----------------------------------------------------------------------------------------------


def serve(lengths: list[int], computed: list[int], budget: int, free: int, block_size: int = 16) -> list[Any]:
    """Serve running requests in order, evicting from the tail when blocks run out."""
    blocks = [(tokens + block_size - 1) // block_size for tokens in computed]
    running = list(range(len(lengths)))
    served: list[Any] = []
    position = 0
    while position < len(running) and budget > 0:
        request = running[position]
        tokens = min(lengths[request] - computed[request], budget)
        evicted = -1
        while True:
            need = (computed[request] + tokens + block_size - 1) // block_size - blocks[request]
            if need <= free or evicted == request:
                break
            evicted = running.pop()
            free += blocks[evicted]
            blocks[evicted] = 0
            served.append(("evict", evicted))
        if evicted == request:
            break
        free -= need
        blocks[request] += need
        budget -= tokens
        served.append((request, tokens))
        position += 1
    return [served, free, budget]


def serve_symbolically(ctx: Context) -> list[Any]:
    lengths = [ctx.int(f"length{i}", 1, 8192) for i in range(3)]
    computed = [ctx.int(f"computed{i}", 0, 8192) for i in range(3)]
    for length, done in zip(lengths, computed, strict=True):
        ctx.assume(done < length)
    return serve(lengths, computed, ctx.int("budget", 1, 8192), ctx.int("free", 0, 10_000))


def test_each_path_of_a_preemption_loop_replays() -> None:
    paths = list(explore(serve_symbolically))
    assert len(paths) > 20
    for path in paths:
        for example in (path.model(), smallest(path)):
            lengths, computed = ([example[f"{name}{i}"] for i in range(3)] for name in ("length", "computed"))
            served, free, budget = serve(lengths, computed, example["budget"], example["free"])
            model = model_of(path, example)
            symbolic_served, *rest = path.result
            assert [(who, path._space.value(what, model)) for who, what in symbolic_served] == served
            assert [path._space.value(value, model) for value in rest] == [free, budget]
            assert takes(path, example)
    random = Random(5)
    for _ in range(200):
        inputs = {"budget": random.randint(1, 200), "free": random.randint(0, 12)}
        for i in range(3):
            inputs[f"length{i}"] = random.randint(1, 100)
            inputs[f"computed{i}"] = random.randint(0, inputs[f"length{i}"] - 1)
        assert sum(takes(path, inputs) for path in paths) == 1


def test_types_stay_what_they_are() -> None:
    def run(ctx: Context) -> tuple[Any, Any]:
        return ctx.int("x"), ctx.int("x") > 3

    (path,) = explore(run)
    assert isinstance(path.result[0], Int)
    assert isinstance(path.result[1], Bool)
    assert path.value(path.result) is path.result
