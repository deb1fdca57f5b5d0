"""The one writer of files: whatever a command saves goes through here, also as root in a folder that others may write.

    regular file     replaced as a whole or left as it was; a reader never sees half of it
    mounted file     (a container's /dev/termination-log) emptied and written: nothing can take its place
    no file yet      made with 0644 less the umask; an own file that is replaced keeps its mode, less o+w
    symbolic link    refused: the file that it leads to may be anybody's
    /dev/stdout, /dev/stderr, /dev/fd/N, /proc/self/fd/N   written to that open stream
    character device, terminal, FIFO   written to, never replaced; a FIFO that nobody reads is an error
    block device, socket, folder       refused

The folder is opened once and everything else is done relative to it; mode and content are given to an open file that
has no name yet (open(2), O_TMPFILE), so there is no name that another user could put something else under, and nothing
stays behind however the process ends. A link on the way to the folder is followed only where root, this user or the
owner of the folder made it: nobody else can turn the way into a folder of somebody else's.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Iterator

from topocheck.model.base import OutputError, is_digits

PATIENCE_S = 30.0
"""How long the reader of a FIFO or a device may take nothing."""
PRIVATE = 0o600
_NEW = 0o644
_PIECE = 1 << 20
_SHOWN = 300
_MAX_LINKS = 40  # as the kernel's own limit, fs/namei.c MAXSYMLINKS
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_DESCRIPTORS = ("/dev/fd/", "/proc/self/fd/", "/proc/thread-self/fd/")


class ForeignLinkError(PermissionError):
    """A link on the way to a folder was made by a user who could lead us astray with it."""


class _Refused(Exception):  # noqa: N818 - never leaves this file
    """Why a name is not written to."""


def write_file(path: str | os.PathLike[str], data: bytes, mode: int | None = None) -> None:
    """Write `data` to a file, device or stream as the table above says.

    Args:
        path: where to.
        data: all of it.
        mode: permissions of the file; as the table says where None.

    Raises:
        OutputError: it cannot be written. A regular file of that name is as it was.
        BrokenPipeError: `path` names a stream or FIFO whose reader left.
    """
    name = os.fspath(path)
    with _told(name):
        stream = stream_of(name)
        if stream is not None:
            _checked(stream)
            if stream == 1:
                sys.stdout.flush()
            _pour(stream, data, None)
            return
        with _opened(name) as (folder, base):
            status = _status(folder, base)
            if status is not None and _is_mounted(folder, base):
                _write_mounted(folder, base, data)
            elif status is None or stat.S_ISREG(status.st_mode):
                _replace(folder, base, data, _mode(status) if mode is None else mode)
            else:
                _write_special(folder, base, data)


class GrowingFile:
    """A file that is written line by line, for what a run records until it is stopped.

    A regular file must not be there yet; streams, FIFOs and character devices are written to as `write_file` does. Each
    `write` is whole on its own: who ends this process leaves whole lines behind.

    Raises:
        OutputError: it cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name = os.fspath(path)
        with _told(self.name):
            stream = stream_of(self.name)
            if stream is not None:
                _checked(stream)
                self._fd = os.dup(stream)
                return
            with _opened(self.name) as (folder, base):
                status = _status(folder, base)
                if status is not None and stat.S_ISREG(status.st_mode):
                    raise _Refused("is there already; a recording goes to a new file")
                if status is None:
                    flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY | os.O_CREAT | os.O_EXCL
                    self._fd = os.open(base, flags, _mode(None), dir_fd=folder)
                else:
                    self._fd = _open_special(folder, base)

    def write(self, data: bytes) -> None:
        """Add `data`.

        Raises:
            OutputError: it cannot be written.
            BrokenPipeError: the reader of a stream or FIFO left.
        """
        with _told(self.name):
            _pour(self._fd, data, PATIENCE_S)

    def close(self) -> None:
        """End the file."""
        os.close(self._fd)


def check_file(path: str | os.PathLike[str]) -> None:
    """Refuse what `write_file` would refuse, as far as it can be known before there is anything to write.

    Raises:
        OutputError: as `write_file`.
    """
    name = os.fspath(path)
    with _told(name):
        stream = stream_of(name)
        if stream is not None:
            _checked(stream)
            return
        with _opened(name) as (folder, base):
            status = _status(folder, base)
            special = status is not None and (not stat.S_ISREG(status.st_mode) or _is_mounted(folder, base))
            if not special and not os.access(".", os.W_OK | os.X_OK, dir_fd=folder, effective_ids=True):
                raise _Refused("cannot be written: permission denied in its folder")


def stream_of(path: str) -> int | None:
    """Return the descriptor that a path such as /dev/stdout or /dev/fd/3 names; None for any other path."""
    if path in ("/dev/stdout", "/dev/stderr"):
        return 1 if path == "/dev/stdout" else 2
    for folder in (*_DESCRIPTORS, f"/proc/{os.getpid()}/fd/"):
        number = path.removeprefix(folder)
        if number != path and is_digits(number) and len(number) < 8:
            return int(number)
    return None


def open_folder(path: str, *, make: bool = False) -> int:
    """Return a descriptor of a folder for use as `dir_fd` (O_PATH), whose links were all made by who may.

    Args:
        path: the folder; empty for the current one.
        make: make what is not there, with 0755 less the umask.

    Raises:
        OSError: there is none, or this user may not see it.
        ForeignLinkError: a link on the way was made by a user who is neither root, nor this one, nor the folder's
            owner.
    """
    at = os.open("/" if path.startswith("/") else ".", _FOLDER)
    rest = path.split("/")[::-1]
    makers: dict[int, str] = {}
    links = 0
    try:
        while rest:
            name = rest.pop()
            if name in ("", "."):
                continue
            step = _step(at, name, makers if make else None)
            link = os.fstat(step)
            if not stat.S_ISLNK(link.st_mode):
                os.close(at)
                at = step
                continue
            links += 1
            if links > _MAX_LINKS:
                os.close(step)
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            if link.st_uid not in (0, os.geteuid()):
                makers.setdefault(link.st_uid, name)
            at = _follow(at, name, step, rest, of_kernel=link.st_size == 0)
        if not stat.S_ISDIR(os.fstat(at).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        _check_makers(at, makers)
    except BaseException:
        os.close(at)
        raise
    return at


def _step(at: int, name: str, makers: dict[int, str] | None) -> int:
    """Return a descriptor of what `name` is in a folder; makes a folder there where `makers` says who may."""
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, flags, dir_fd=at)
    except FileNotFoundError:
        if makers is None:
            raise
    _check_makers(at, makers)
    os.mkdir(name, 0o755, dir_fd=at)
    return os.open(name, flags, dir_fd=at)


def _follow(at: int, name: str, link: int, rest: list[str], *, of_kernel: bool) -> int:
    """Follow an opened link from the folder `at`; puts its parts on `rest` and returns the folder they count from."""
    try:
        if of_kernel:
            # /proc/PID/root and its like lead where their text does not say: only the kernel can follow them.
            new = os.open(name, os.O_PATH | os.O_CLOEXEC, dir_fd=at)
        else:
            target = os.readlink("", dir_fd=link)
            rest += target.split("/")[::-1]
            if not target.startswith("/"):
                return at
            new = os.open("/", _FOLDER)
    finally:
        os.close(link)
    os.close(at)
    return new


def _check_makers(folder: int, makers: dict[int, str]) -> None:
    owner = os.fstat(folder).st_uid
    for uid, link in makers.items():
        if uid != owner:
            raise ForeignLinkError(
                errno.EPERM,
                f"{link!r} on the way to it is a symbolic link of user {uid}, and leads to a folder of user {owner}: "
                "give the path without it",
            )


@contextlib.contextmanager
def _told(name: str) -> Iterator[None]:
    """Turn whatever goes wrong with a file into one OutputError that names it."""
    shown = name if len(name) <= _SHOWN else f"{name[:_SHOWN]}..."
    try:
        yield
    except _Refused as e:
        raise OutputError(f"{shown}: {e}") from None
    except (OSError, ValueError) as e:  # ValueError: a NUL in the name
        if isinstance(e, BrokenPipeError):
            raise
        why = e.strerror or str(e) if isinstance(e, OSError) else str(e)
        raise OutputError(f"{shown}: cannot be written: {why}") from None


@contextlib.contextmanager
def _opened(path: str) -> Iterator[tuple[int, str]]:
    """Open the folder of a file; yields it and the file's name in it."""
    above, base = os.path.split(path)
    if base in ("", ".", ".."):
        raise _Refused("is a folder; expected a file")
    try:
        folder = open_folder(above)
    except ForeignLinkError:
        raise
    except OSError:
        raise _Refused(f"cannot be written: there is no folder {above} that this user may see") from None
    try:
        yield folder, base
    finally:
        os.close(folder)


def _status(folder: int, base: str) -> os.stat_result | None:
    """Return the status of a file that may be written; None where there is none yet."""
    try:
        status = os.stat(base, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFLNK:
        target = os.readlink(base, dir_fd=folder)
        raise _Refused(
            f"is a symbolic link to {target[:_SHOWN]!r}, and none is followed in writing: give the path of the file"
        )
    for wrong, what in ((stat.S_IFDIR, "folder"), (stat.S_IFBLK, "block device"), (stat.S_IFSOCK, "socket")):
        if kind == wrong:
            raise _Refused(f"is a {what}; expected a file")
    if not os.access(base, os.W_OK, dir_fd=folder, effective_ids=True, follow_symlinks=False):
        raise _Refused("cannot be written: permission denied")
    return status


def _mode(status: os.stat_result | None) -> int:
    """Return the mode of a file to be: that of the one it replaces where this user made that one."""
    if status is not None and status.st_uid == os.geteuid():
        return stat.S_IMODE(status.st_mode) & 0o775
    # Closed to all others for the moment that another thread may make a file in.
    mask = os.umask(0o077)
    os.umask(mask)
    return _NEW & ~mask


def _is_mounted(folder: int, base: str) -> bool:
    """Tell whether a regular file is a mount of its own, which only an administrator makes; False without /proc."""
    fd = os.open(base, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        of_file = _mount_of(fd)
        return stat.S_ISREG(os.fstat(fd).st_mode) and of_file is not None and of_file != _mount_of(folder)
    finally:
        os.close(fd)


def _mount_of(fd: int) -> bytes | None:
    """Return the line of a descriptor that names its mount (proc(5), fdinfo: mnt_id); None where none is to be had."""
    try:
        info = os.open(f"/proc/self/fdinfo/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return next((line for line in os.read(info, 1 << 12).splitlines() if line.startswith(b"mnt_id:")), None)
    finally:
        os.close(info)


def _write_mounted(folder: int, base: str, data: bytes) -> None:
    fd = os.open(base, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode) or _mount_of(fd) == _mount_of(folder):
            raise _Refused("cannot be written: another user replaced it meanwhile")
        os.ftruncate(fd, 0)
        _pour(fd, data, None)
    finally:
        os.close(fd)


def _replace(folder: int, base: str, data: bytes, mode: int) -> None:
    temporary = f".topocheck-{os.urandom(8).hex()}"
    if not _replace_unnamed(folder, temporary, base, data, mode):
        _replace_named(folder, temporary, base, data, mode)


def _replace_unnamed(folder: int, temporary: str, base: str, data: bytes, mode: int) -> bool:
    """Write a file without a name, then give it one; False where this file system has no such files."""
    try:
        fd = os.open(".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, PRIVATE, dir_fd=folder)
    except OSError:
        return False
    try:
        _pour(fd, data, None)
        os.fchmod(fd, mode)
        with _without_signals(), _taken_away(folder, temporary):
            try:
                os.link(f"/proc/self/fd/{fd}", temporary, dst_dir_fd=folder)
            except OSError:
                return False  # no /proc, or links to such files are forbidden here
            os.rename(temporary, base, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        os.close(fd)
    return True


def _replace_named(folder: int, temporary: str, base: str, data: bytes, mode: int) -> None:
    """Write a file under another name, then rename it; signals wait until it is renamed or gone."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with _without_signals(), _taken_away(folder, temporary):
        fd = os.open(temporary, flags, PRIVATE, dir_fd=folder)
        try:
            _pour(fd, data, None)
            os.fchmod(fd, mode)
            os.fsync(fd)  # network file systems report a full disk or quota only now
        finally:
            os.close(fd)
        os.rename(temporary, base, src_dir_fd=folder, dst_dir_fd=folder)


@contextlib.contextmanager
def _taken_away(folder: int, temporary: str) -> Iterator[None]:
    """Remove a temporary file where what is done with it fails."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise


@contextlib.contextmanager
def _without_signals() -> Iterator[None]:
    """Let signals that end the process wait."""
    import signal

    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT))
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _open_special(folder: int, base: str) -> int:
    """Open a device or FIFO for writing, without waiting for a reader; one without a reader is refused."""
    flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        return os.open(base, flags, dir_fd=folder)
    except OSError as e:
        if e.errno == errno.ENXIO:
            raise _Refused("cannot be written: no process reads from it; start its reader first") from None
        raise


def _write_special(folder: int, base: str, data: bytes) -> None:
    fd = _open_special(folder, base)
    try:
        status = os.fstat(fd)
        if not (stat.S_ISCHR(status.st_mode) or stat.S_ISFIFO(status.st_mode)):
            raise _Refused("cannot be written: another user replaced it meanwhile")
        _pour(fd, data, PATIENCE_S)
    finally:
        os.close(fd)


def _checked(stream: int) -> None:
    """Refuse a stream that is not open for writing; where it was closed, its number may be that of some other file."""
    import fcntl

    closed = (stream == 1 and sys.stdout is None) or (stream == 2 and sys.stderr is None)
    if closed or (stream > 2 and not os.get_inheritable(stream)):
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    if fcntl.fcntl(stream, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def _pour(fd: int, data: bytes, patience_s: float | None) -> None:
    """Write all of `data`, waiting for a slow reader no longer than `patience_s` at a time."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(fd, rest[:_PIECE]) :]
        except BlockingIOError:
            import select

            ready = select.poll()
            ready.register(fd, select.POLLOUT)
            if not ready.poll(None if patience_s is None else 1000 * patience_s):
                raise _Refused(f"cannot be written: its reader took nothing for {patience_s:g} s") from None
