"""Files that take another one's place when they are whole and on the disk.

No link is followed but one that the user named, and a file keeps its permissions.
"""

import contextlib
import errno
import os
import secrets


def write(path, text):
    """What is there and no file (a pipe, a terminal, /dev/null) is written into."""
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "w") as out:
            out.write(text)
        return
    target = os.path.realpath(path)
    name = beside(target)
    file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        with open(file, "w") as out:
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(file, os.stat(target).st_mode & 0o777)
            out.write(text)
            out.flush()
            sync(file)
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    with contextlib.suppress(OSError):  # it is whole all the same
        sync_folder(os.path.dirname(target))


def sync(file):
    """What a file system cannot do has no need of it."""
    try:
        os.fsync(file)
    except OSError as problem:
        if problem.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise


def sync_folder(name):
    folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def beside(target):
    """A name that nobody can know before, and that is short however long the target's is."""
    return os.path.join(os.path.dirname(target), ".pleat.%s.tmp" % secrets.token_hex(8))
