"""
The suite of attacks, as ``make attack``: each part by its name, and what came of it.

A part is a module of this folder with a function ``run(size) -> Count``. The exit status is 0 if nothing
is broken.
"""

import argparse
import importlib
import importlib.util
import sys

from tests.attack.counts import Count, Size

PARTS = ("damages", "clocks", "disks")


def main() -> int:
    there = [name for name in PARTS if importlib.util.find_spec(f"tests.attack.{name}")]
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"of {', '.join(there)}; all usually"
    )
    sizes = parser.add_mutually_exclusive_group()
    for size in Size:
        sizes.add_argument(f"--{size.value}", dest="size", action="store_const", const=size)
    arguments = parser.parse_args()
    unknown = set(arguments.parts) - set(there)
    if unknown:
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(there)}")
    total = Count()
    for name in arguments.parts or there:
        count = importlib.import_module(f"tests.attack.{name}").run(arguments.size or Size.SHORT)
        total.add(name, count)
        sys.stdout.write("".join(f"{line}\n" for line in count.lines(name)))
        sys.stdout.flush()
    for each in total.broken:
        sys.stdout.write(f"broken: {each}\n")
    (last,) = [*total.lines("attack")][-1:]
    sys.stdout.write(f"{last}\n")
    return 1 if total.broken else 0


if __name__ == "__main__":
    sys.exit(main())
