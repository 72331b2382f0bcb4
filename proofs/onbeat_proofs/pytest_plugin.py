"""A pytest plugin: the audit of a scheduler class, one test for each invariant.

In a test file, for a class that is to stay as it is:

    from onbeat_proofs.pytest_plugin import SchedulerContract

    class TestMine(SchedulerContract):
        scheduler = Mine

or without any file: `pytest --onbeat-scheduler package.module:Mine`. The audit runs once for each class, when the first
of its tests asks for it; until then nothing else of Onbeat is imported.
"""

import sys
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from functools import cached_property
from inspect import getattr_static, isfunction, signature
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import pytest

if TYPE_CHECKING:
    from onbeat_proofs.audit.reports.verdicts import CheckResult

BUDGETS = ("quick", "standard", "deep")
OPTIONS = ("policy", "budget", "seed", "own")


class SchedulerContract:
    """The tests of one scheduler class: subclass it, and set `scheduler`.

    A violated invariant fails with the smallest scenario that was found. One that was never put to the test fails too,
    unless `allow_vacuous` names it: then it is skipped.
    """

    __test__ = False

    scheduler: Any = None
    """A class of a family that an adapter knows (the reference's, vLLM's); its name as `module:Class`; or a function
    or method that makes the scheduler from (config, policy)."""
    policy: ClassVar[str] = "auto"
    """The policy that it is given or should keep: a built-in one, module:Class, file.py:Class, or its family's."""
    budget: ClassVar[Literal["quick", "standard", "deep"]] = "quick"
    seed: ClassVar[int] = 0
    own: ClassVar[bool] = False
    """Set apart the violations that the class inherits: those whose run violates the same on its base. Skipped."""
    allow_vacuous: ClassVar[Collection[str]] = ()
    """Ids of invariants that need not be put to the test."""
    deliberate: ClassVar[Mapping[str, str]] = {}
    """Ids of invariants that the class violates on purpose, and why. They xfail; one that holds after all fails."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__test__" not in vars(cls):
            cls.__test__ = True

    def test_signature(self, onbeat_audit: "Audited") -> None:
        """The class takes every call that its callers make."""
        onbeat_audit.judge("signature")

    def test_invariant(self, onbeat_audit: "Audited", onbeat_invariant: str) -> None:
        """No run of the audit violates the invariant, and some met its premise."""
        onbeat_audit.judge(onbeat_invariant)

    def test_policy_text(self, onbeat_audit: "Audited") -> None:
        """The class keeps the policy text of its version, where it has one."""
        onbeat_audit.judge(None)

    def test_suite(self, onbeat_audit: "Audited") -> None:
        """The scenarios of the conformance suite end as they are written."""
        onbeat_audit.judge("suite")


class AuditTarget(NamedTuple):
    """What is audited, and what is accepted of it."""

    scheduler: Any
    name: str
    policy: str = "auto"
    budget: Any = "quick"
    seed: int = 0
    own: bool = False
    allow_vacuous: Collection[str] = ()
    deliberate: Mapping[str, str] = {}


class Audited:
    """An audit that runs when it is first asked for, and its verdicts as outcomes of tests."""

    def __init__(self, target: AuditTarget) -> None:
        self.target = target

    def judge(self, id: str | None) -> None:
        """End the running test as a check says; None: as all checks beyond the catalogue say together."""
        __tracebackhide__ = True
        if self._refused is not None:
            pytest.fail(self._refused, pytrace=False)
        if id == "signature" and not isinstance(self.target.scheduler, type) and not self._checks[id].problems:
            pytest.skip("the scheduler is made by a function: there is no class to compare with the base")
        if id is not None and id in self._not_asked:
            pytest.skip(f"{id}: {self._not_asked[id]}")
        if id == "suite" and id not in self._checks:
            pytest.skip("the conformance suite has no scenario for this class and its policy")
        if id is not None:
            checks = [self._checks[id]]
        else:
            others = {"signature", "suite", *invariants()}
            checks = [check for name, check in self._checks.items() if name not in others]
            if not checks:
                pytest.skip("a class of this family has no policy text of its own version")
        failures = [text for text in map(self._failure, checks) if text is not None]
        if failures:
            pytest.fail("\n\n".join(failures), pytrace=False)
        accepted = [check for check in checks if check.verdict == "violated"]
        if accepted:
            pytest.xfail("; ".join(f"deliberate: {self.target.deliberate[check.id]}" for check in accepted))
        skipped = [check for check in checks if check.verdict in ("vacuous", "inherited")]
        if skipped:
            pytest.skip("; ".join(f"{check.id}: {check.reason}" for check in skipped))
        warned = [check.reason for check in checks if check.verdict == "holds" and check.reason]
        if warned:
            sys.stdout.write("\n".join(warned) + "\n")  # pytest shows it where it is asked for output

    def _failure(self, check: "CheckResult") -> str | None:
        """Return why a check fails its test; None: it does not."""
        why = self.target.deliberate.get(check.id)
        if check.verdict == "violated":
            return None if why is not None else _violation(check, self.target.name)
        if why is not None and check.verdict == "holds":
            return f"{check.id} holds, though `deliberate` says that it does not ({why}): take it out"
        if check.verdict == "vacuous" and check.id in self.target.allow_vacuous:
            return None
        if check.verdict == "vacuous":
            return f"{check.id} is {check.reason}\n{check.statement}\nIf that is right, name it in `allow_vacuous`."
        return f"{check.id}: {check.reason}" if check.verdict == "undecided" else None

    @cached_property
    def _outcome(self) -> "_Outcome":
        from onbeat_proofs.audit.reports.verdicts import checks_of
        from onbeat_proofs.audit.run import audit
        from onbeat_proofs.foreign.watchdog import GUARD, Guard
        from onbeat_spec.errors import OnbeatError

        target = self.target
        token = GUARD.set(Guard())  # a call that hangs is cut off; the process is pytest's own
        try:
            report = audit(
                target.scheduler, target.policy, target.budget, target.seed, name=target.name, own=target.own
            )
        except OnbeatError as error:
            return _Outcome({}, {}, f"{target.name} cannot be audited: {error}")
        finally:
            GUARD.reset(token)
        checks = {check.id: check for check in checks_of(report)}
        unknown = sorted({*target.allow_vacuous, *target.deliberate} - checks.keys() - report.not_asked.keys())
        if unknown:
            return _Outcome({}, {}, f"{', '.join(unknown)}: no such check; there are {', '.join(checks)}")
        return _Outcome(checks, report.not_asked)

    @property
    def _checks(self) -> "Mapping[str, CheckResult]":
        return self._outcome.checks

    @property
    def _not_asked(self) -> Mapping[str, str]:
        return self._outcome.not_asked

    @property
    def _refused(self) -> str | None:
        return self._outcome.refused


class _Outcome(NamedTuple):
    """What came of an audit: its checks, and invariants that the class is not asked about, and why; or no audit."""

    checks: "Mapping[str, CheckResult]"
    not_asked: Mapping[str, str]
    refused: str | None = None


def invariants() -> Sequence[str]:
    """Return the ids of the invariants of one rank, one test each."""
    import onbeat_spec.invariants  # noqa: F401  (fills the catalogue)
    from onbeat_spec.catalogue import CATALOGUE

    return [id for id, entry in CATALOGUE.items() if entry.scopes]


def _violation(check: "CheckResult", scheduler: str) -> str:
    """Say what is wrong; the first line alone says it too, since summaries show no more."""
    lines = []
    for problem in check.problems:
        lines += [problem.detail.rstrip() or problem.message, ""]
    lines.append(f"{scheduler} violates {check.id}: {check.statement}")
    if any(problem.finding is not None for problem in check.problems):
        lines.append("The scenario above runs on any scheduler: onbeat replay FILE.yaml --scheduler module:Class")
    return "\n".join(lines)


# --- Subclasses of the contract --------------------------------------------------------------------------------------


@pytest.fixture(scope="class")
def onbeat_audit(request: pytest.FixtureRequest) -> Audited:
    """The audit of a `SchedulerContract`; it runs when the first verdict is asked for."""
    cls = request.cls
    if not (isinstance(cls, type) and issubclass(cls, SchedulerContract)):
        raise pytest.UsageError("onbeat_audit is for subclasses of onbeat_proofs.pytest_plugin.SchedulerContract")
    name = f"{cls.__module__}:{cls.__qualname__}"
    return Audited(
        AuditTarget(
            _factory(cls, name), name, cls.policy, cls.budget, cls.seed, cls.own, cls.allow_vacuous, cls.deliberate
        )
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one test for each invariant."""
    ours = isinstance(metafunc.cls, type) and issubclass(metafunc.cls, SchedulerContract)
    if ours and "onbeat_invariant" in metafunc.fixturenames:
        metafunc.parametrize("onbeat_invariant", invariants())


def _factory(cls: type[SchedulerContract], name: str) -> Any:
    """Return the class or function that a subclass names."""
    scheduler = getattr_static(cls, "scheduler")
    if isinstance(scheduler, str):
        return _loaded(scheduler)
    if isinstance(scheduler, staticmethod):
        return scheduler.__func__
    if isfunction(scheduler):
        takes_self = len(signature(scheduler).parameters) > 2
        return getattr(cls(), "scheduler") if takes_self else scheduler  # noqa: B009  (its type is that of the class)
    if callable(scheduler):
        return scheduler
    pytest.fail(f"{name}.scheduler is {scheduler!r}; set it to a scheduler class", pytrace=False)


def _loaded(text: str) -> type:
    from onbeat_proofs.foreign.targets import load_scheduler
    from onbeat_spec.errors import OnbeatError

    try:
        return load_scheduler(text)
    except OnbeatError as error:
        pytest.fail(str(error), pytrace=False)


# --- A class named on the command line -------------------------------------------------------------------------------

TARGET = pytest.StashKey[AuditTarget]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("onbeat", "audit of a scheduler class")
    group.addoption(
        "--onbeat-scheduler",
        metavar="MODULE:CLASS",
        help="audit this class, one test for each invariant; without paths nothing else is collected",
    )
    group.addoption(
        "--onbeat-policy", metavar="POLICY", help="policy that it is given or should keep (default: its family's)"
    )
    group.addoption("--onbeat-budget", choices=BUDGETS, help="how much is explored (default: quick)")
    group.addoption("--onbeat-seed", type=int, metavar="SEED", help="seed of the random histories (default: 0)")
    group.addoption(
        "--onbeat-own",
        action="store_true",
        default=None,
        help="set apart the violations that it inherits: those whose run violates the same on its base",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Load the class that is asked for."""
    options = {name: config.getoption(f"onbeat_{name}") for name in OPTIONS}
    options = {name: value for name, value in options.items() if value is not None}
    name = config.getoption("onbeat_scheduler")
    if name is None:
        if options:
            raise pytest.UsageError(f"--onbeat-{next(iter(options))} needs --onbeat-scheduler MODULE:CLASS")
        return
    from onbeat_proofs.audit.adapters import AUTO
    from onbeat_proofs.foreign.policies import policy_of
    from onbeat_proofs.foreign.targets import load_scheduler
    from onbeat_spec.errors import OnbeatError

    try:
        config.stash[TARGET] = AuditTarget(load_scheduler(name), name, **options)
        if "policy" in options and options["policy"] != AUTO:
            policy_of(options["policy"])
    except OnbeatError as error:
        raise pytest.UsageError(f"--onbeat-scheduler: {error}") from None
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args = []


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Add the class's tests to what a session collects."""
    report = yield
    target = collector.config.stash.get(TARGET, None)
    if target is not None and isinstance(collector, pytest.Session) and report.passed:
        report.result.append(ContractCollector.from_parent(collector, name=target.name, nodeid=target.name))
    return report


class ContractCollector(pytest.Collector):
    """The tests of the class that is named on the command line."""

    def collect(self) -> Iterator["ContractItem"]:
        """Yield them in the order of `SchedulerContract`."""
        audited = Audited(self.config.stash[TARGET])
        for id in ("signature", *invariants(), None, "suite"):
            yield ContractItem.from_parent(self, name=id or "policy-text", judge=audited.judge, check=id)


class ContractItem(pytest.Item):
    """One test of the class that is named on the command line."""

    def __init__(self, *, judge: Callable[[str | None], None], check: str | None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.judge, self.check = judge, check

    def runtest(self) -> None:
        """Audit the class, unless another test has, and look the verdict up."""
        self.judge(self.check)

    def reportinfo(self) -> tuple[Any, None, str]:
        """Name the test in the report of a failure."""
        return self.path, None, self.name
