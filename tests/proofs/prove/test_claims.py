"""Every table and page says the same of how strong a claim is, and no more than was checked."""

from pathlib import Path

from click.testing import CliRunner

from onbeat_proofs.prove.claims import claims_of, markdown, proved_for, strength_of
from onbeat_proofs.prove.coverage import matrix
from onbeat_proofs.prove.ledger import START, THEOREMS
from onbeat_proofs.prove.theorem import FOR_ALL
from onbeat_proofs.verbs.spec import command
from onbeat_spec.catalogue import CATALOGUE

PAGE = Path(__file__).parents[3] / "docs" / "claims.md"


def test_the_page_is_what_the_verb_prints() -> None:
    result = CliRunner().invoke(command, ["--claims"], standalone_mode=False)
    assert result.return_value == 0, result.output
    assert PAGE.read_text("utf-8").endswith(f"\n\n{result.output}")


def test_every_invariant_and_every_theorem_has_a_row() -> None:
    rows = [line.split(" | ") for line in markdown(matrix()) if line.startswith("| ")][1:]
    assert {row[0].removeprefix("| ") for row in rows} == set(CATALOGUE)
    named = {f"{row[0].removeprefix('| ')}/{row[1]}" for row in rows}
    assert {theorem.id for theorem in THEOREMS if theorem.invariant in CATALOGUE} <= named


def test_nothing_about_whole_steps_is_for_all_sizes() -> None:
    """The argument from turns to steps is on paper."""
    for theorem in THEOREMS:
        assert theorem.about not in ("step", "steps") or theorem.strength != FOR_ALL, theorem.id


def test_who_begins_in_a_start_state_says_what_it_leaves_out() -> None:
    assert {theorem.id for theorem in THEOREMS} >= START
    assert all(theorem.restrictions for theorem in THEOREMS if theorem.about != "decision")


def test_steps_and_their_parts_are_told_apart() -> None:
    claims = list(claims_of("decode-never-held"))
    assert proved_for(claims) == "steps, parts*"
    assert strength_of(claims[0]) == "one decision, all sizes"
    assert proved_for([]) == "(tested)"
