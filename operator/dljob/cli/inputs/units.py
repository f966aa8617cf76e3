"""
``dljob up`` as a service of systemd: the unit, and the word that the service is ready.

Called by :mod:`dljob.cli.verbs.server.up`.
"""

import os
import shutil
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

# Two lines of the unit matter more than they look. KillMode: what trains is in the control group of the
# service, and goes on when the service ends or is started again. Restart: one that was ended by
# `systemctl stop` or `dljob down` stays ended.
# The further lines are needed because trainings inherit the limits of the service. OOMPolicy: one that is killed for
# memory must not end the service. The limits are those of a server of trainings: many threads, many files, and
# memory that a network card may use directly; by default systemd gives 15 % of the tasks and 1024 files.
SERVICE = """\
[Service]
Type=notify
ExecStart={command}
ExecReload=/bin/kill -HUP $MAINPID
{umask}KillMode=process
OOMPolicy=continue
TasksMax=infinity
LimitNOFILE=1048576
LimitMEMLOCK=infinity
Restart=on-failure
RestartSec=2
TimeoutStartSec=infinity
TimeoutStopSec=60
"""

UNIT = f"""\
# Printed by `dljob up --print-unit`. As your own service:
#   mkdir -p ~/.config/systemd/user
#   dljob up … --print-unit > ~/.config/systemd/user/dljob.service
#   systemctl --user daemon-reload
#   systemctl --user enable --now dljob
#   loginctl enable-linger            # goes on when you log out, and starts with the machine
[Unit]
Description=DLJob: elastic GPU scheduling on this machine
After=network.target

{SERVICE}
[Install]
WantedBy=default.target
"""

SYSTEM_UNIT = f"""\
# Printed by `dljob up --system --print-unit`: a server for all users, each of whose jobs runs as its user.
#   cp dljob.service /etc/systemd/system/
#   systemctl daemon-reload
#   systemctl enable --now dljob
[Unit]
Description=DLJob: elastic GPU scheduling for all users of this machine
After=network.target

{SERVICE}
[Install]
WantedBy=multi-user.target
"""

SPECIAL = {"\\": "\\\\", '"': '\\"', "%": "%%", "$": "$$"}


def unit(arguments: Sequence[str], *, program: str = "") -> str:
    """Write a unit that runs ``dljob``, or the program that is named, with these arguments."""
    words = (program or _find_program(), *arguments)
    command = " ".join(map(_quote, words))
    if "--system" in arguments:
        return SYSTEM_UNIT.format(command=command, umask="UMask=0077\n")
    return UNIT.format(command=command, umask="")


def _find_program() -> str:
    """Return the whole path of the running command, which systemd needs."""
    beside = Path(sys.executable).with_name("dljob")
    return str(beside) if beside.exists() else shutil.which("dljob") or str(beside)


def _quote(word: str) -> str:
    """Quote a word for systemd."""
    escaped = "".join(SPECIAL.get(each, each) for each in word)
    is_plain = escaped and not any(each.isspace() or each in "\"'\\;" for each in word)
    return escaped if is_plain else f'"{escaped}"'


def tell_ready() -> None:
    """Report to systemd, if it started this process, that the server answers."""
    # Removed, so that jobs cannot report in the name of the service.
    address = os.environ.pop("NOTIFY_SOCKET", "")
    if not address:
        return
    # An address that begins with @ is in the abstract namespace.
    path = f"\0{address[1:]}" if address.startswith("@") else address
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as door:
        try:
            door.sendto(b"READY=1", path)
        except OSError:
            # The program that set the variable no longer listens.
            return
