"""The option of checkers that lets named invariants pass without having been put to the test."""

import click

allow_vacuous = click.option(
    "--allow-vacuous",
    multiple=True,
    metavar="ID",
    help="An invariant that need not be put to the test; may be given again. All others must, for exit code 0.",
)
