"""Modules of the page as one script."""

import pytest

from dljob_web.linking import LinkError, link


def test_a_module_comes_after_those_that_it_imports_and_keeps_its_names():
    files = {
        "main.js": 'import { twice, default as htm } from "./low.js";\nexport const a = twice(1);\n',
        "low.js": "const a = 2;var x=1;export default function(s){}\nexport function twice(n) {}\nexport{x as y};\n",
    }
    linked = link(files.__getitem__, "main.js")
    assert linked.index("const m0") < linked.index("const m1")
    assert "const { twice, default: htm } = m0;" in linked
    assert "return { twice, default: theDefault, y: x };" in linked
    assert "export" not in linked


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('import "./low.js";', "main.js: import"),
        ('export * from "./low.js";', "main.js: export"),
        ('import { a } from "./main.js";', "imports itself"),
    ],
)
def test_forms_that_are_not_understood_are_refused(text, message):
    with pytest.raises(LinkError, match=message):
        link({"main.js": text}.__getitem__, "main.js")
