"""Examples in Python, run as their readers run them: one after the other, with the same names."""

import ast
import asyncio
import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def blocks_of(page: Path) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


def cells_of(notebook: Path) -> list[str]:
    document = json.loads(notebook.read_text(encoding="utf-8"))
    return ["".join(each["source"]) for each in document["cells"] if each["cell_type"] == "code"]


def run(blocks: list[str], names: dict[str, Any], source: Path) -> None:
    """Run one block after the other."""
    for number, block in enumerate(blocks, 1):
        exec(compile(ast.parse(block), f"{source.name}[{number}]", "exec"), names)  # noqa: S102 - our own pages


async def run_in_kernel(blocks: list[str], names: dict[str, Any], source: Path) -> None:
    """Run the blocks as the kernel of a notebook does: while an event loop runs in the thread."""
    asyncio.get_running_loop()
    run(blocks, names, source)
