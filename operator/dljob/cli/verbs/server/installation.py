"""
Whether this installation may serve all users: each of them can run it, and only root can change it.

``dljob up --system`` asks before it begins. Root would run code that another user has written into an
interpreter, a package, or a folder that modules are loaded from.
"""

import contextlib
import grp
import os
import pwd
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import click

import dljob.cli
import dljob.local
from dljob.installed import find_source
from dljob.local.environments import name_user
from dljob.local.folders import find_closed


def insist_on_root() -> None:
    """Raise if jobs could not run as their users."""
    if os.getuid() != 0:
        raise click.ClickException("--system: only root can run jobs as other users; use sudo")
    for path in (Path(sys.executable), Path(dljob.local.__file__)):
        closed = find_closed(path)
        if closed is not None:
            raise click.ClickException(
                f"--system: {path} cannot be used by all users, because {closed} is closed to them;"
                " install dljob where they can read it, such as in /opt/dljob"
            )
    for path in _loaded_from():
        found = find_writer(path)
        if found is not None:
            place, writer = found
            raise click.ClickException(
                f"--system: root would run code of other users, because {writer} may change"
                f" {place}; install dljob where only root may write: sudo python3 -m venv"
                f" /opt/dljob, and sudo /opt/dljob/bin/pip install '{find_source()}'"
            )


def _loaded_from() -> Iterator[Path]:
    """Return the interpreter and every folder of modules."""
    yield Path(sys.executable)
    for package in (dljob.cli, dljob.local):
        yield Path(str(package.__file__))
    for place in sys.path:
        if os.path.exists(place or "."):  # noqa: PTH110 - some are archives, or no paths at all
            yield Path(place)


def find_writer(path: Path) -> tuple[Path, str] | None:
    """
    Return what on the way to a file another user than root may change, and that user or group.

    In a folder such as /tmp every user may make files, but none may replace those of root.
    """
    for each in (path.absolute(), path.resolve()):
        for part in (each, *each.parents):
            if writer := _writer_of(part.lstat(), is_last=part == each):
                return part, writer
    return None


def _writer_of(status: os.stat_result, *, is_last: bool) -> str:
    """Return a user or group other than root that may write to a path; empty if there is none."""
    if status.st_uid != 0:
        return f"the user {name_user(status.st_uid)}"
    if stat.S_ISLNK(status.st_mode):
        return ""
    is_sticky = bool(status.st_mode & stat.S_ISVTX) and not is_last
    if status.st_mode & stat.S_IWOTH and not is_sticky:
        return "every user"
    if status.st_mode & stat.S_IWGRP and not is_sticky and _has_members(status.st_gid):
        return f"the group {_name_group(status.st_gid)}"
    return ""


def _has_members(gid: int) -> bool:
    with contextlib.suppress(KeyError):
        if set(grp.getgrgid(gid).gr_mem) - {"root"}:
            return True
    return any(user.pw_gid == gid and user.pw_uid != 0 for user in pwd.getpwall())


def _name_group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
