"""One thin file per command.

Importing this is the beginning of a command. Until that has something to clear away (signals.py), an interrupt ends the
process at once, as it ends a C program: with a KeyboardInterrupt in the middle of an import there would be a traceback,
or an extension module that swallows it, stays half made and crashes when it is used.
"""

import _signal  # type: ignore[import-not-found]  # what `signal` wraps, which takes milliseconds to load

try:
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
except ValueError:  # in a thread, which Python spares interrupts anyway
    pass
