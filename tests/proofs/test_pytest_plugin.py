"""The pytest plugin, in runs of their own: subclasses of the contract, and a class named on the command line."""

import tomllib
from pathlib import Path

import pytest

from onbeat_proofs import pytest_plugin
from onbeat_proofs.pytest_plugin import invariants

pytest_plugins = ["pytester"]

MINE = '''
from onbeat_reference import Scheduler


class Right(Scheduler):
    """Nothing is wrong with it."""


class OneTooMany(Scheduler):
    """One request more than there are slots."""

    @property
    def num_slots(self):
        return super().num_slots - 1


class FlagIgnored(Scheduler):
    """The flag is taken and dropped."""

    def schedule(self, *args, **kwargs):
        return super().schedule()


class NoFlag(Scheduler):
    """The flag is not taken."""

    def schedule(self):
        return super().schedule(False)


def make(config, policy):
    return Scheduler(config, policy)
'''
SMALL = """
from onbeat_proofs.audit import budgets, run

budgets.LIMITS["quick"] = budgets.Limits(0, 300, 2, 3, 0.1, 1)
chosen = run.scenarios_for
run.scenarios_for = lambda policy: [s for s in chosen(policy) if s.case == "B07"]
"""
"""A budget far below `quick`: `UNSEEN` is not put to the test in it."""
UNSEEN = ["no-empty-step"]
HEAD = "import mine\nfrom onbeat_proofs.pytest_plugin import SchedulerContract\n"
ALL = len(invariants()) + 3
"""Tests of one class: each invariant, the signature, the policy text, the suite."""


@pytest.fixture
def run(pytester: pytest.Pytester) -> "Run":
    pytester.makepyfile(mine=MINE, conftest=SMALL)
    return Run(pytester)


class Run:
    """Runs of pytest in a folder with `MINE`, in a process of their own; warnings are errors there too."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester

    def __call__(self, *args: str, test: str | None = None) -> pytest.RunResult:
        if test is not None:
            self.pytester.makepyfile(test_mine=HEAD + test)
        return self.pytester.runpytest_subprocess("-p", "onbeat_proofs.pytest_plugin", "-W", "error", *args)


# --- Subclasses of the contract --------------------------------------------------------------------------------------


def test_a_violated_invariant_fails_with_its_scenario(run: Run) -> None:
    test = f"class TestMine(SchedulerContract):\n    scheduler, allow_vacuous = mine.OneTooMany, {UNSEEN}\n"
    result = run("-v", test=test)
    result.assert_outcomes(passed=ALL - 3, failed=1, skipped=2)
    result.stdout.fnmatch_lines(
        [
            "test_mine.py::TestMine::test_signature PASSED*",
            "test_mine.py::TestMine::test_invariant?decode-never-held? PASSED*",
            "*TestMine.test_invariant?slots?*",
            "step ?: *",
            "name: 'slots: test_mine:TestMine'",
            "steps:",
            "  - schedule: *",
            "step  0*",
            "test_mine:TestMine violates slots: Running requests*",
            "FAILED test_mine.py::TestMine::test_invariant?slots? - Failed: step*",
        ]
    )
    assert "Traceback" not in result.stdout.str()
    assert "pytest_plugin.py" not in result.stdout.str()


def test_a_vacuous_invariant_fails_unless_it_is_named(run: Run) -> None:
    test = (
        "class TestMine(SchedulerContract):\n    scheduler = 'mine:FlagIgnored'\n    allow_vacuous = ['held-at-most']\n"
    )
    result = run("-rs", "-k", "held-at-most or decode-never-held or one-place", test=test)
    result.assert_outcomes(passed=1, failed=1, skipped=1, deselected=ALL - 3)
    result.stdout.fnmatch_lines(
        [
            "decode-never-held is never put to the test: never seen together: *",
            "If that is right, name it in `allow_vacuous`.",
            "SKIPPED*held-at-most: never put to the test*",
        ]
    )


def test_a_deliberate_difference_xfails_and_one_that_is_gone_fails(run: Run) -> None:
    test = """
class TestMine(SchedulerContract):
    scheduler = mine.OneTooMany
    deliberate = {"slots": "one more does no harm", "one-place": "who knows"}
"""
    result = run("-rx", "-k", "slots or one-place", test=test)
    result.assert_outcomes(xfailed=1, failed=1, deselected=ALL - 2)
    result.stdout.fnmatch_lines(
        [
            "one-place holds, though `deliberate` says that it does not (who knows): take it out",
            "XFAIL*slots*deliberate: one more does no harm",
        ]
    )


def test_a_call_that_is_not_taken_is_one_failure_and_no_pass_beside_it(run: Run) -> None:
    result = run(test="class TestMine(SchedulerContract):\n    scheduler = mine.NoFlag\n")
    result.assert_outcomes(failed=ALL - 1, skipped=1)
    result.stdout.fnmatch_lines(
        ["NoFlag.schedule: missing throttle flag*", "decode-never-held: not decided: the audit ended early"]
    )


@pytest.mark.parametrize(
    "scheduler",
    [
        "    scheduler = mine.make\n",
        "    scheduler = staticmethod(mine.make)\n",
        "    def scheduler(self, config, policy):\n        return mine.make(config, policy)\n",
    ],
)
def test_a_function_may_make_the_scheduler(scheduler: str, run: Run) -> None:
    test = f"class TestMine(SchedulerContract):\n{scheduler}"
    result = run("-rs", "-k", "signature or one-place", test=test)
    result.assert_outcomes(passed=1, skipped=1, deselected=ALL - 2)
    result.stdout.fnmatch_lines(["SKIPPED*the scheduler is made by a function*"])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("pass", "test_mine:TestMine.scheduler is None; set it to a scheduler class"),
        ("scheduler = 'mine:Gone'", "scheduler 'mine:Gone': mine has no 'Gone'; its classes are *"),
        ("scheduler, policy = mine.Right, 'offbeat'", "test_mine:TestMine cannot be audited: policy is 'offbeat'*"),
        (
            "scheduler, allow_vacuous = mine.Right, ['held-at-last']",
            "held-at-last: no such check; there are signature, decode-never-held, *",
        ),
    ],
)
def test_a_contract_that_cannot_work_says_why(body: str, message: str, run: Run) -> None:
    test = f"class TestMine(SchedulerContract):\n    {body}\n"
    result = run("-k", "one-place", test=test)
    assert result.ret == 1
    result.stdout.fnmatch_lines([message])
    assert "Traceback" not in result.stdout.str()


def test_a_suite_without_scenarios_is_skipped(run: Run) -> None:
    run.pytester.makepyfile(conftest=f"{SMALL}\nrun.scenarios_for = lambda policy: []\n")
    result = run("-rs", "-k", "suite", test="class TestMine(SchedulerContract):\n    scheduler = mine.Right\n")
    result.assert_outcomes(skipped=1, deselected=ALL - 1)
    result.stdout.fnmatch_lines(["SKIPPED*the conformance suite has no scenario for this class and its policy"])


def test_the_audit_runs_once_for_each_class(run: Run) -> None:
    test = """
class TestMine(SchedulerContract):
    made = []

    def scheduler(self, config, policy):
        return mine.make(config, policy)

def test_nothing_was_audited_twice(): ...
"""
    counting = """
real = run.audit
def counted(*args, **kwargs):
    print("AUDIT", kwargs["name"])
    return real(*args, **kwargs)
run.audit = counted
"""
    run.pytester.makepyfile(conftest=SMALL + counting)
    result = run("-s", "-k", "one-place or slots or budget", test=test)
    result.assert_outcomes(passed=3, deselected=ALL - 3 + 1)
    assert result.stdout.str().count("AUDIT test_mine:TestMine") == 1


def test_the_base_itself_is_never_collected(run: Run) -> None:
    test = """
class Shared(SchedulerContract):
    __test__ = False
    scheduler = "mine:Right"

class TestIt(Shared): ...
"""
    run.pytester.makeini("[pytest]\npython_classes = *")
    result = run("--collect-only", "-q", test=test)
    collected = [line for line in result.outlines if "::" in line]
    assert len(collected) == ALL
    assert all(line.startswith("test_mine.py::TestIt::") for line in collected)


MISFIT = """
from onbeat_proofs.audit import adapters, run
from onbeat_proofs.audit.static.signature import Misfit

class Adapter(adapters.ReferenceAdapter):
    def misfits(self, cls):
        return [Misfit("Right", "class is sync", False, warning=True)]

    def lacks(self):
        return {"load-bounded": "a remote load has no deadline here"}

run.adapter_for = lambda cls: Adapter()
"""
"""A family that is not asked about an invariant, and a class with a warning."""


def test_what_a_family_is_not_asked_about_is_skipped_and_a_warning_fails_nobody(run: Run) -> None:
    run.pytester.makepyfile(conftest=SMALL + MISFIT)
    test = "class TestMine(SchedulerContract):\n    scheduler, allow_vacuous = mine.Right, ['load-bounded']\n"
    result = run("-rsP", "-k", "signature or load-bounded or one-place", test=test)
    result.assert_outcomes(passed=2, skipped=1, deselected=ALL - 3)
    result.stdout.fnmatch_lines(
        ["warning: Right: class is sync", "SKIPPED*load-bounded: a remote load has no deadline here"]
    )


def test_what_a_class_inherits_is_set_apart(run: Run) -> None:
    """The base is what an adapter says; here a class with the same fault."""
    base = "adapters.ReferenceAdapter.base = lambda self, cls: __import__('mine').OneTooMany\n"
    run.pytester.makepyfile(conftest=f"{SMALL}\nfrom onbeat_proofs.audit import adapters\n{base}")
    test = """
class TestTheSame(SchedulerContract):
    scheduler, own = type("TheSame", (mine.OneTooMany,), {}), True

class TestItself(SchedulerContract):
    scheduler = mine.OneTooMany
"""
    result = run("-rs", "-k", "slots", test=test)
    result.assert_outcomes(failed=1, skipped=1, deselected=2 * ALL - 2)
    result.stdout.fnmatch_lines(["SKIPPED*slots: violated in * were tried on the base, and violate it too"])


# --- A class named on the command line -------------------------------------------------------------------------------


def test_a_class_without_any_file(run: Run) -> None:
    run.pytester.makepyfile(test_other="def test_other(): ...")
    result = run("--onbeat-scheduler", "mine:OneTooMany", "-v")
    result.assert_outcomes(passed=ALL - 3, failed=1 + len(UNSEEN), skipped=1)
    result.stdout.fnmatch_lines(
        [
            f"*collected {ALL} items",
            "mine:OneTooMany::signature PASSED*",
            "mine:OneTooMany::slots FAILED*",
            "mine:OneTooMany::suite PASSED*",
            "name: 'slots: mine:OneTooMany'",
            "FAILED mine:OneTooMany::slots - *",
        ]
    )
    assert "test_other" not in result.stdout.str()
    assert result.ret == 1


def test_the_options_reach_the_audit(run: Run) -> None:
    stub = """
from onbeat_proofs.audit import run
from onbeat_spec.errors import NotAScheduler

def told(*args, name, own):
    raise NotAScheduler(f"{args} {name} {own}")
run.audit = told
"""
    run.pytester.makepyfile(conftest=stub)
    options = ["--onbeat-policy", "pr44558", "--onbeat-budget", "deep", "--onbeat-seed", "3", "--onbeat-own"]
    result = run("--onbeat-scheduler", "mine:Right", *options, "-k", "budget")
    result.assert_outcomes(failed=1, deselected=ALL - 1)
    result.stdout.fnmatch_lines(
        ["mine:Right cannot be audited: (<class 'mine.Right'>, 'pr44558', 'deep', 3) mine:Right True"]
    )


def test_files_that_are_named_run_too(run: Run) -> None:
    run.pytester.makepyfile(test_other="def test_one_place(): ...")
    result = run("--onbeat-scheduler", "mine:Right", "test_other.py", "-k", "one-place or test_one_place")
    result.assert_outcomes(passed=2, deselected=ALL - 1)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--onbeat-scheduler", "nowhere:Mine"], "*scheduler 'nowhere:Mine': there is no module 'nowhere'*"),
        (["--onbeat-scheduler", "mine:Mine"], "*scheduler 'mine:Mine': mine has no 'Mine'*"),
        (["--onbeat-scheduler", "mine:Right", "--onbeat-policy", "offbeat"], "*policy is 'offbeat'*"),
        (["--onbeat-scheduler", "mine:Right", "--onbeat-budget", "huge"], "*invalid choice: 'huge'*"),
        (["--onbeat-seed", "3"], "*--onbeat-seed needs --onbeat-scheduler MODULE:CLASS"),
    ],
)
def test_misuse_is_a_usage_error(args: list[str], message: str, run: Run) -> None:
    result = run(*args)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])
    assert "Traceback" not in result.stderr.str()


# --- In everybody's runs ---------------------------------------------------------------------------------------------


def test_who_does_not_ask_gets_nothing(run: Run) -> None:
    run.pytester.makepyfile(
        conftest="",
        test_plain="""
import sys

def test_plain():
    ours = {name for name in sys.modules if name.startswith("onbeat_")}
    assert ours <= {"onbeat_proofs", "onbeat_proofs.pytest_plugin"}
    assert "z3" not in sys.modules
""",
    )
    run("test_plain.py").assert_outcomes(passed=1)


def test_the_installed_plugin_and_the_named_one_are_the_same() -> None:
    """Its entry point has the module's name; pytest skips the second of two plugins of one name."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    name = pytest_plugin.__name__
    assert project["project"]["entry-points"]["pytest11"] == {name: name}
