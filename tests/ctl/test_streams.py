"""Standard output holds data only, even if libraries print to it."""

import os
import sys

from dljob.cli.output.streams import divert_libraries


def test_library_output_goes_to_standard_error(capfd):
    sys.stdout.write("before\n")
    with divert_libraries():
        os.write(1, b"a solver talks\n")
    sys.stdout.write("after\n")
    sys.stdout.flush()
    assert capfd.readouterr() == ("before\nafter\n", "a solver talks\n")
