"""
``python strangers.py FOLDER PREFIX COMMAND …``: run the command as in a hardened container.

As root it sets up an unknown user and a read-only file system, except for FOLDER. The interpreter's
PREFIX appears as FOLDER/python, because it may lie in a user's home.
"""

import ctypes
import os
import sys

CLONE_NEWNS = 0x00020000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE = 442, -100, 0x8000
MOUNT_ATTR_RDONLY = 1
STRANGER = 54321

libc = ctypes.CDLL(None, use_errno=True)


class Attributes(ctypes.Structure):
    """The kernel's ``struct mount_attr``."""

    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "namespace")]


def check(result):
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def mount(source, target, flags):
    check(libc.mount(source.encode(), target.encode(), None, flags, None))


def set_attributes(path, flags, attributes):
    size = ctypes.sizeof(attributes)
    found = libc.syscall(
        MOUNT_SETATTR, AT_FDCWD, path.encode(), flags, ctypes.byref(attributes), size
    )
    check(found)


def main():
    folder, prefix, *command = sys.argv[1:]
    check(libc.unshare(CLONE_NEWNS))
    mount("none", "/", MS_REC | MS_PRIVATE)
    mount(folder, folder, MS_BIND)
    mount(prefix, f"{folder}/python", MS_BIND | MS_REC)
    set_attributes("/", AT_RECURSIVE, Attributes(set=MOUNT_ATTR_RDONLY))
    set_attributes(folder, 0, Attributes(clear=MOUNT_ATTR_RDONLY))
    os.setgroups([])
    os.setgid(STRANGER)
    os.setuid(STRANGER)
    # Some moved interpreters need this path. An image need not set more.
    environment = {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": f"{folder}/python/lib"}
    os.execve(command[0], command, environment)  # noqa: S606


if __name__ == "__main__":
    main()
