"""The forms for issues are valid, and their commands exist."""

import re
from pathlib import Path

import pytest
import yaml

from dljob.cli.verb_list import list_sections

FOLDER = Path(__file__).resolve().parents[2] / ".github" / "ISSUE_TEMPLATE"
FORMS = sorted(file for file in FOLDER.glob("*.yml") if file.stem != "config")


def test_there_is_a_form_for_each_kind_of_issue():
    assert [form.stem for form in FORMS] == ["bug", "feature", "question"]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_form_is_complete_and_names_known_commands(form):
    document = yaml.safe_load(form.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= document.keys()
    known = {verb for verbs in list_sections().values() for verb in verbs} | {"--version"}
    assert set(re.findall(r"\bdljob (--version|[a-z]+)", str(document["body"]))) <= known
