"""Credentials of munge, which vouches for the user who made one: libmunge, called directly.

munge's daemon on each node of a cluster has the cluster's key. A credential says who made it, can be restricted to
one reader, is encrypted, and is taken once on each node. https://github.com/dun/munge, munge.h and munge(7).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
from collections.abc import Iterator, Mapping
from functools import lru_cache

LIBRARY = "libmunge.so.2"
OPT_CIPHER_TYPE, OPT_SOCKET, OPT_UID_RESTRICTION = 0, 8, 9
"""Of munge_opt_t in munge.h."""
CIPHER_AES128 = 4
MOST_BYTES = 4096


class MungeError(Exception):
    """munge did not make or not take a credential; says why."""


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL | None:
    try:
        lib = ctypes.CDLL(LIBRARY)
    except OSError:
        return None
    text, blob = ctypes.c_char_p, ctypes.c_void_p
    lib.munge_ctx_create.restype = blob
    lib.munge_ctx_destroy.argtypes = (blob,)
    lib.munge_strerror.restype = text
    lib.munge_encode.argtypes = (ctypes.POINTER(blob), blob, text, ctypes.c_int)
    lib.munge_decode.argtypes = (
        text, blob, ctypes.POINTER(blob), ctypes.POINTER(ctypes.c_int),
        ctypes.POINTER(ctypes.c_uint32), ctypes.POINTER(ctypes.c_uint32),
    )  # fmt: skip
    return lib


def available() -> bool:
    """Tell whether munge's daemon makes a credential for this process and takes it back."""
    try:
        return decode(encode(b"topocheck")) == b"topocheck"
    except MungeError:
        return False


def encode(payload: bytes) -> str:
    """Return a credential that only this user can read.

    Raises:
        MungeError: munge is not there or did not answer.
    """
    with _context() as (lib, context):
        made = ctypes.c_void_p()
        _check(lib, lib.munge_encode(ctypes.byref(made), context, payload, len(payload)))
        try:
            return (ctypes.string_at(made) if made.value else b"").decode("ascii")
        finally:
            _free(made)


def decode(credential: str) -> bytes:
    """Return what a credential carries, which this user made.

    Raises:
        MungeError: it is none, is another user's, was taken before or is too old; or munge did not answer.
    """
    with _context() as (lib, context):
        made, length = ctypes.c_void_p(), ctypes.c_int()
        uid, gid = ctypes.c_uint32(), ctypes.c_uint32()
        error = lib.munge_decode(
            credential.encode(), context, ctypes.byref(made), ctypes.byref(length), ctypes.byref(uid), ctypes.byref(gid)
        )
        try:
            _check(lib, error)
            if uid.value != os.geteuid():
                raise MungeError(f"the credential is of uid {uid.value}, expected {os.geteuid()}")
            if not 0 < length.value <= MOST_BYTES:
                raise MungeError(f"the credential carries {length.value} bytes")
            return ctypes.string_at(made, length.value)
        finally:
            _free(made)


@contextlib.contextmanager
def _context() -> Iterator[tuple[ctypes.CDLL, ctypes.c_void_p]]:
    lib = _library()
    if lib is None:
        raise MungeError(f"{LIBRARY} is not installed")
    context = lib.munge_ctx_create()
    if not context:
        raise MungeError("no memory")
    handle = ctypes.c_void_p(context)
    try:
        place = socket_path(os.environ)
        if place:
            _check(lib, lib.munge_ctx_set(handle, OPT_SOCKET, place.encode()))
        _check(lib, lib.munge_ctx_set(handle, OPT_UID_RESTRICTION, ctypes.c_uint32(os.geteuid())))
        _check(lib, lib.munge_ctx_set(handle, OPT_CIPHER_TYPE, CIPHER_AES128))
        yield lib, handle
    finally:
        lib.munge_ctx_destroy(handle)


def _check(lib: ctypes.CDLL, error: int) -> None:
    if error:
        said = lib.munge_strerror(error)
        raise MungeError((said or b"unknown error").decode("ascii", "replace"))


def _free(pointer: ctypes.c_void_p) -> None:
    if pointer.value:
        libc = ctypes.CDLL(None)
        libc.free.argtypes = (ctypes.c_void_p,)
        libc.free(pointer)


def socket_path(environ: Mapping[str, str]) -> str:
    """Return the socket of munge's daemon where Slurm's configuration names another than the usual; else empty.

    `AuthInfo=socket=/path` of slurm.conf, which SLURM_CONF names. A file that others can change is not believed.
    """
    try:
        # A FIFO would be waited for without O_NONBLOCK.
        fd = os.open(environ.get("SLURM_CONF", "/etc/slurm/slurm.conf"), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    with open(fd, encoding="utf-8", errors="replace") as f:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid not in _owners() or status.st_mode & 0o022:
            return ""
        lines = f.read(1 << 20).splitlines()
    for line in lines:
        name, _, value = line.partition("#")[0].strip().partition("=")
        if name.strip().lower() == "authinfo":
            for part in value.strip().strip('"').split(","):
                key, _, place = part.strip().partition("=")
                if key.lower() == "socket" and place.startswith("/"):
                    return place
    return ""


def _owners() -> set[int]:
    """Return who may own Slurm's configuration: root, this user, or the user that Slurm runs as."""
    import pwd

    out = {0, os.geteuid()}
    with contextlib.suppress(KeyError):
        out.add(pwd.getpwnam("slurm").pw_uid)
    return out
