"""Starting NVML while the rest of a child is still being loaded.

Starting NVML takes 0.1 s and more, about as long as loading this program: so a child that starts NVML is forked before
anything else is imported, and imports what it needs while the driver starts (`topocheck.collect.begin`).
"""

from __future__ import annotations

import _thread


def start_nvml() -> None:
    """Load NVML, and start it in a thread: a later start finds it done, or waits for it.

    What goes wrong here is not reported: the start that follows meets it again, as the answer to a question.
    """
    import ctypes

    try:
        # Loaded in this thread: two threads that import at once wait for each other at every file.
        start = ctypes.CDLL("libnvidia-ml.so.1").nvmlInitWithFlags
    except (OSError, AttributeError):
        return
    # Not by `threading`, whose import would delay the driver's start; nobody has to know of this thread.
    _thread.start_new_thread(start, (0,))
