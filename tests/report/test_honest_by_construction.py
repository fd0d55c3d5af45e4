"""A deliberately broken protection and a failed positive control are both seen, in every view that people have."""

import io
import json

import pytest
from rich.console import Console
from tests.audit.samples import BLIND_ATTACK, BROKEN, HOLDS, audit_of

from bilateral.audit.auditor import stored_result
from bilateral.report.audit_html import audit_html
from bilateral.report.audit_table import audit_tables
from bilateral.report.leakage_page import leakage_page


def as_table(result, width=100):
    text = io.StringIO()
    console = Console(file=text, width=width, highlight=False, soft_wrap=True, color_system=None)
    for part in audit_tables(result):
        console.print(part)
    return text.getvalue()


def as_page(result):
    return leakage_page([("sample", result)])


VIEWS = {"table": as_table, "page": as_page, "html": audit_html}
SHORT = {
    "table": lambda result: as_table(result, 150).split("In short")[1],
    "page": lambda result: as_page(result).split("## What holds, and what does not")[1].split("### How to read it")[0],
    "html": lambda result: audit_html(result).split(">In short</h2>")[1].split("<table")[1].split("</table>")[0],
}


@pytest.fixture(params=SHORT.values(), ids=SHORT.keys())
def short(request):
    return request.param


@pytest.fixture(params=VIEWS.values(), ids=VIEWS.keys())
def view(request):
    return request.param


def claim_line(text, what):
    """The line on which a claim stands with its verdict."""
    words = ("BROKEN", "proves nothing", "not tested", "holds (")
    return next(line for line in text.splitlines() if what in line and any(word in line for word in words))


def test_a_deliberately_broken_protection_is_seen(view):
    text = view(audit_of([BROKEN]))
    assert "1 BROKEN" in text
    assert "BROKEN" in claim_line(text, "every upload and its weight")
    assert "25.0" in text
    assert "9.5" in text
    assert "holds (" not in text


def test_a_failed_positive_control_is_seen_and_never_holds(view):
    text = view(audit_of([BLIND_ATTACK]))
    assert "1 proves nothing" in text
    assert "proves nothing" in claim_line(text, "every upload and its weight")
    assert "BROKEN" not in text
    assert "holds (" not in text


def test_a_failed_positive_control_is_seen_beside_an_attack_that_worked(view):
    text = " ".join(view(audit_of([BLIND_ATTACK, HOLDS])).split())
    assert "1 holds (nothing found by these attacks)" in text
    assert "11.0 [" in text
    assert "proves nothing" in text.replace("proves nothing&quot; means", "").replace('"proves nothing" means', "")


def test_in_short_too_a_broken_protection_is_seen(short):
    text = " ".join(short(audit_of([BROKEN, HOLDS])).split())
    assert text.count("BROKEN") == 1
    assert "PSNR dB 25.0; controls 26.0 and 9.5" in text
    assert "nothing found" not in text


def test_in_short_too_a_failed_control_is_seen_and_never_holds(short):
    text = " ".join(short(audit_of([BLIND_ATTACK])).split())
    assert "proves nothing" in text
    assert "controls 11.0 and 9.5" in text
    assert "nothing found" not in text
    assert "BROKEN" not in text


def test_what_nobody_tried_is_seen(view):
    text = view(audit_of([BROKEN]))
    assert "not tested" in claim_line(text, "two sums with a client in common")


def test_no_view_says_more_than_that_nothing_was_found(view):
    text = view(audit_of([HOLDS])).lower()
    for word in ("secure against", "safe", "guaranteed", "is private", "proven", "cannot leak"):
        assert word not in text


def test_a_stored_audit_is_seen_as_it_was(view, tmp_path):
    result = audit_of([BROKEN, BLIND_ATTACK, HOLDS])
    path = tmp_path / "audit.json"
    path.write_text(json.dumps(result.as_dict(), allow_nan=False))
    stored = stored_result(path)
    assert stored.verdicts == result.verdicts
    assert view(stored) == view(result)


def test_a_verdict_that_somebody_wrote_into_the_file_is_not_believed(view, tmp_path):
    values = audit_of([BROKEN]).as_dict()
    for row in values["verdicts"]:
        row["verdict"] = row["claim_verdict"] = "holds"
    path = tmp_path / "audit.json"
    path.write_text(json.dumps(values))
    text = view(stored_result(path))
    assert "1 BROKEN" in text
    assert "holds (" not in text
