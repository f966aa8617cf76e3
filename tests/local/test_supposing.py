"""Questions about two futures of a live system; ``test_mcp`` asks one of a real ``dljob up``."""

import pytest

from dljob.cli.verbs.studies.supposing import WrongQuestion, read_question


def test_a_wrong_question_names_its_field():
    for question, problem in (
        ([], "the question is no JSON object"),
        ({"polici": "fifo"}, "polici: there is no such field; there are another, cordon, job"),
        ({"job": "a", "most": "2"}, "most: is no whole number"),
        ({"job": "a", "most": True}, "most: is no whole number"),
        ({"job": "a", "priority": 10**9}, "priority: is no whole number of at most 1,000,000"),
        ({"cordon": 1}, "cordon: is no text"),
        ({"most": 2}, "job: is missing"),
    ):
        with pytest.raises(WrongQuestion, match=problem):
            read_question(question)
