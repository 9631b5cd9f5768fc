"""Files that take another one's place when they are whole and on the disk, as plan/base/file.c does it for the
command.

No link is followed but one that the user named, a file keeps its permissions, and what is being written has no name
where the system can do that, so that nothing of it is left when the process is killed.
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
    replace(os.path.realpath(path), text.encode())


def replace(target, contents):
    file, name = create(target)
    try:
        fill(file, contents, target)
        name = name or give_name(file, target)
        os.replace(name, target)
    except BaseException:
        if name is not None:
            with contextlib.suppress(OSError):
                os.unlink(name)
        raise
    finally:
        os.close(file)
    with contextlib.suppress(OSError):  # it is whole all the same
        sync_folder(os.path.dirname(target))


def fill(file, contents, target):
    """Writes all of a file that is to take another one's place, to the disk, with that one's permissions."""
    with contextlib.suppress(FileNotFoundError):
        os.fchmod(file, os.stat(target).st_mode & 0o777)
    with open(file, "wb", closefd=False) as out:
        out.write(contents)
    sync(file)


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


def create(target):
    """A new file beside another one: its descriptor and its name, None while it has none."""
    try:
        file = os.open(os.path.dirname(target), os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o666)
    except OSError:
        file = None  # this file system has no such files, or what is wrong is said below
    if file is not None and os.path.exists("/proc/self/fd/%d" % file):
        return file, None
    if file is not None:
        os.close(file)
    name = beside(target)
    return os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666), name


def give_name(file, target):
    """Names a file that has none. A link cannot take another file's place, a rename can."""
    name = beside(target)
    # A folder is given so that it is linkat that is called, which follows the link that /proc has for an open file.
    os.link("/proc/self/fd/%d" % file, name, src_dir_fd=file, follow_symlinks=True)
    return name
