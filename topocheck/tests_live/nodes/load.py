"""How busy a node is with other work while its pairs are measured."""

from __future__ import annotations


class Load:
    """The CPU time of the node so far, and of this process and its children."""

    def __init__(self) -> None:
        import psutil

        times, own = psutil.cpu_times(), psutil.Process().cpu_times()
        # Linux counts a guest's time as user time too (proc(5), /proc/stat).
        idle = times.idle + getattr(times, "iowait", 0.0)
        self.all_s = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        self.busy_s = self.all_s - idle
        self.own_s = own.user + own.system + own.children_user + own.children_system

    def others_since(self) -> float | None:
        """Return the share of all CPU time that other processes took since, 0 to 1; None where no time passed."""
        now = Load()
        total = float(now.all_s - self.all_s)
        if total <= 0:
            return None
        others = float(now.busy_s - self.busy_s) - float(now.own_s - self.own_s)
        return min(1.0, max(0.0, others / total))
