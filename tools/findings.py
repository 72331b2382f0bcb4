"""Audit vLLM's schedulers and packages that derive from them, and write docs/findings.md.

    python -m tools.findings [--only LABEL] [--budget BUDGET] [--again]

Every audit runs beside its own vLLM release, in an environment of `tools/vllm_env.py`, and leaves its results in
`.vllm/findings/LABEL.json`. What lies there is not run again; the document is written from what lies there alone.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tools.findings_page import write
from tools.findings_targets import TARGETS, Target
from tools.vllm_env import QUIET, ROOT, Done, EnvironmentFailedError, Maker, Run, execute, last_line

LIMIT = {"quick": 600, "standard": 1800, "deep": 14_400}
"""Wall seconds after which an audit is given up."""
OWN_ERROR = "this is an error of onbeat itself"
"""What `onbeat` says of its own faults."""
STOPPED = "the process was ended by SIGTERM"
Audit = Callable[[Sequence[str], dict[str, str], float], Done]


def run_audit(command: Sequence[str], environment: dict[str, str], limit: float) -> Done:
    """Run an audit to its end, or up to `limit` wall seconds."""
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **QUIET, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Done(2, f"given up after {limit:.0f} s")
    return Done(done.returncode, done.stdout)


class Results:
    """What audits found, in files.

    Args:
        root: the checkout.
        run: runs pip.
        audit: runs audits.
    """

    def __init__(self, root: Path, run: Run = execute, audit: Audit = run_audit) -> None:
        self.folder = root / ".vllm" / "findings"
        self.third = root / ".vllm" / "third"
        self.maker = Maker(root, run)
        self.audit = audit
        self.folder.mkdir(parents=True, exist_ok=True)

    def known(self, target: Target) -> dict[str, Any] | None:
        """Return what an audit of this very target left, if it was run."""
        file = self.folder / f"{target.label}.json"
        if not file.is_file():
            return None
        result: dict[str, Any] = json.loads(file.read_text("utf-8"))
        return result if (result["class"], result["distribution"]) == (target.cls, target.distribution) else None

    def make(self, target: Target, budget: str) -> dict[str, Any]:
        """Audit a class.

        Returns:
            What is kept of it: `report`, as `onbeat audit --json` writes it, or `error`, one line.

        Raises:
            EnvironmentFailedError: a package cannot be had, or the audit broke, which says nothing about the class.
        """
        python = self.maker.make(target.vllm)
        file = self.folder / f"{target.label}.report.json"
        file.unlink(missing_ok=True)
        command = [str(python), "-m", "onbeat", "audit", target.cls]
        command += ["--budget", budget, "--json", str(file), *(() if target.stock else ("--own",))]
        done = self.audit(command, {"PYTHONPATH": str(self.package(target)), **target.environment}, LIMIT[budget])
        if OWN_ERROR in done.output:
            raise EnvironmentFailedError(f"the audit itself broke: {done.output.strip()}")
        if STOPPED in done.output:
            raise EnvironmentFailedError(f"the audit of {target.label} was stopped from outside; run it again")
        result = {
            "class": target.cls,
            "distribution": target.distribution,
            "vllm": target.vllm,
            "budget": budget,
            "date": datetime.now(UTC).date().isoformat(),
            "report": json.loads(file.read_text("utf-8")) if file.is_file() else None,
            "error": None if file.is_file() else last_line(done.output),
        }
        file.unlink(missing_ok=True)
        text = json.dumps(result, indent=1)
        (self.folder / f"{target.label}.json").write_text(text + "\n", encoding="utf-8")
        return result

    def package(self, target: Target) -> Path:
        """Install what a class is in, without what it depends on; return the folder."""
        here = self.third / (target.label if target.distribution else "none")
        stamp = here / ".installed"
        wanted = [target.distribution, *target.extras] if target.distribution else []
        made_of = json.dumps([wanted, dict(target.stubs)])
        if stamp.is_file() and stamp.read_text("utf-8") == made_of:
            return here
        shutil.rmtree(here, ignore_errors=True)
        here.mkdir(parents=True)
        for requirement in wanted:
            pip = [str(self.maker.base / "bin" / "python"), "-m", "pip", "install", "-q", "--no-deps"]
            done = self.maker.run([*pip, "--target", str(here), requirement])
            if done.code:
                raise EnvironmentFailedError(f"{requirement} cannot be installed: {last_line(done.output)}")
        for name, text in target.stubs.items():
            (here / name).parent.mkdir(parents=True, exist_ok=True)
            (here / name).write_text(text, encoding="utf-8")
        stamp.write_text(made_of, encoding="utf-8")
        return here


def main(
    arguments: Sequence[str] | None = None, root: Path = ROOT, run: Run = execute, audit: Audit = run_audit
) -> int:
    """Audit what was not audited yet, and write the document; 0: written, 2: some class could not be audited."""
    parser = argparse.ArgumentParser(description="Audit vLLM's schedulers and those of packages beside them.")
    parser.add_argument("--only", action="append", metavar="LABEL", help="audit this one alone; may be given again")
    parser.add_argument("--budget", choices=list(LIMIT), help="of every audit that is run; default: the target's own")
    parser.add_argument("--again", action="store_true", help="also where there are results already")
    parser.add_argument("--render", action="store_true", help="audit nothing; write the document from what is there")
    options = parser.parse_args(arguments)
    wanted = options.only or [target.label for target in TARGETS]
    unknown = sorted(set(wanted) - {target.label for target in TARGETS})
    if unknown:
        parser.error(f"no target {', '.join(unknown)}; one of {', '.join(target.label for target in TARGETS)}")
    results, failed = Results(root, run, audit), False
    for target in TARGETS:
        if options.render or target.label not in wanted or (results.known(target) and not options.again):
            continue
        print(f"{target.label}: {target.cls}", file=sys.stderr, flush=True)
        try:
            results.make(target, options.budget or target.budget)
        except EnvironmentFailedError as error:
            print(f"error: {error}", file=sys.stderr)
            failed = True
    audited = {target.label: result for target in TARGETS if (result := results.known(target)) is not None}
    for file in write(root / "docs", TARGETS, audited):
        print(file)
    return 2 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
