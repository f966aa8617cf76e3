"""
The SideCar as Python runs this folder, or ``dljob-sidecar.pyz``, which is the folder in one file with the packages that it needs.

Which interpreter an image has becomes known only when it starts. This file is therefore written
such that any Python 3 can read it, also one that is too old for the rest, and says so by name.
"""
# ruff: noqa: I002 - an old interpreter does not know that future

import sys

OLDEST = (3, 9)
EXIT_UNAVAILABLE = 69


def main() -> int:
    if sys.version_info < OLDEST:
        sys.stderr.write(
            "dljob-sidecar: InterpreterTooOld: {} is Python {}.{}, and the SideCar needs {}.{} or"
            " newer; install one in the image, or name an existing one\n".format(
                sys.executable, *sys.version_info[:2], *OLDEST
            )
        )
        return EXIT_UNAVAILABLE
    # The image is not ours: the archive writes nothing into it.
    sys.dont_write_bytecode = sys.dont_write_bytecode or sys.path[0].endswith(".pyz")
    from dljob_sidecar.__main__ import main as begin  # noqa: PLC0415 - too new for an old interpreter

    return begin()


if __name__ == "__main__":
    sys.exit(main())
