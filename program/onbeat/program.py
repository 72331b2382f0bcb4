"""The program `onbeat`: finds its verbs by entry points and ends every run with one meaning per exit code.

0 holds; 1 violated; 2 could not be decided or run (usage errors and crashes included, so that 1 is always a verdict);
130 interrupted; 141 the reader of the output went away.
"""

import ast
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from onbeat_spec.errors import OnbeatError

GROUP = "onbeat.commands"

UNDECIDED = 2
INTERRUPTED = 130
READER_GONE = 141


class Verbs(click.Group):
    """A group whose commands are entry points, imported only when one is run or asked for its own help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_verbs())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        verb = _verbs().get(cmd_name)
        return None if verb is None else _load(verb)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, _summary(verb)) for name, verb in sorted(_verbs().items())]
        if rows:
            with formatter.section("Verbs"):
                formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # click would import every verb to suggest a near one, and list none of them.
        if args and args[0] not in (known := _verbs()) and not args[0].startswith("-"):
            ctx.fail(f"no verb {args[0]!r}; there are {', '.join(sorted(known))}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()
        except BrokenPipeError:  # `onbeat spec | head`: click would exit with 1, which is a verdict here
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(READER_GONE) from None


def _verbs() -> dict[str, EntryPoint]:
    return {verb.name: verb for verb in entry_points(group=GROUP)}


def _load(verb: EntryPoint) -> click.Command:
    try:
        command = verb.load()
    except ModuleNotFoundError as error:
        raise OnbeatError(
            f"the verb {verb.name!r} needs the module {error.name!r}, which is not installed; "
            "what serving needs comes with pip install 'onbeat[engine]'"
        ) from error
    if not isinstance(command, click.Command):
        raise OnbeatError(f"the verb {verb.name!r} is {verb.value}, which is no click command")
    return command


def _summary(verb: EntryPoint) -> str:
    """The first sentence of the command's docstring, read from its source: importing every verb would load z3."""
    try:
        spec = find_spec(verb.module)
        if spec is None or spec.origin is None:
            return ""
        module = ast.parse(Path(spec.origin).read_bytes())
    except (ImportError, OSError, ValueError, SyntaxError):
        return ""
    for node in module.body:
        if isinstance(node, ast.FunctionDef) and node.name == verb.attr:
            return click.Command(verb.name, help=ast.get_docstring(node)).get_short_help_str(limit=90)
    return ""


@click.group(cls=Verbs, subcommand_metavar="VERB [ARGS]...", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="onbeat", message="onbeat %(version)s")
def program() -> None:
    """Check the prefill step cadence of LLM serving, audit schedulers, and serve with it.

    Every verb exits with 0 if everything holds, 1 if something is violated, 2 if something could not be decided or run.
    """


def run(args: Sequence[str] | None = None) -> int:
    """Run the program on ARGS (default: sys.argv) and return its exit code; a verb's SystemExit passes through."""
    try:
        result = program.main(args=args, prog_name="onbeat", standalone_mode=False)
    except OnbeatError as error:
        _complain(error)
    except click.ClickException as error:
        error.show()
    except click.Abort as error:  # what click makes of KeyboardInterrupt, and of EOFError
        if not isinstance(error.__cause__, EOFError):
            return INTERRUPTED
        _complain(error.__cause__)
    except OSError as error:
        _complain(error)
    except Exception:
        traceback.print_exc()
        click.echo("onbeat: error: this is an error of onbeat itself; please report it with the lines above", err=True)
    else:
        return result if isinstance(result, int) else 0
    return UNDECIDED


def _complain(error: Exception) -> None:
    text = " ".join(line.strip() for line in str(error).splitlines() if line.strip())
    click.echo(f"onbeat: error: {text or type(error).__name__}", err=True)


def main() -> None:
    """The console script."""
    sys.exit(run())
