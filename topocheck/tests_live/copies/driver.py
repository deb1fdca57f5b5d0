"""Copies by the copy engines through the CUDA driver.

How a sample is taken (as nvbandwidth does it): every stream is held by cuStreamWaitValue32 on a flag in the host's
memory; behind it are queued the warm-ups, an event, the timed copies and an event; then the flag is written. So the
time it takes to queue is outside what is timed. The other streams wait for the first one's start event.

cuStreamWaitValue32 needs no kernel, so nothing can be loaded lazily while it waits; a timer lets go after ten seconds
whatever happens.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from topocheck.bandwidth.cases import HOST, CopyRow
from topocheck.model.measurement import EngineName
from topocheck.tests_live.copies.driver_calls import DriverError
from topocheck.tests_live.copies.driver_copy import DriverRow
from topocheck.tests_live.copies.driver_resources import DriverResources, StartGate
from topocheck.tests_live.copies.measure import Prepared, Progress, UnsupportedRowError


class DriverEngine(DriverResources):
    """The engine of the CUDA driver."""

    name: EngineName = "driver"

    def open(self, addresses: tuple[str, ...], progress: Progress) -> dict[str, str]:
        """Make the primary contexts of all devices, side by side."""
        call = self.driver.call
        progress("cuInit")
        call("cuInit", 0)
        version = int(call("cuDriverGetVersion"))
        for a in addresses:
            try:
                self.devices[a] = call("cuDeviceGetByPCIBusId", a.encode())
            except DriverError as e:
                hint = "not among the devices CUDA sees; check CUDA_VISIBLE_DEVICES"
                raise DriverError(e.call, e.result, f"{a}: {hint}") from None
        progress("cuDevicePrimaryCtxRetain " + " ".join(addresses))
        with ThreadPoolExecutor(max(1, len(addresses))) as pool:
            contexts = list(pool.map(lambda a: call("cuDevicePrimaryCtxRetain", self.devices[a], about=a), addresses))
        self.contexts = dict(zip(addresses, contexts, strict=True))
        if addresses:
            self.current(addresses[0])
            self.gate = StartGate(self.driver)
        return {
            "cuda_driver_api": f"{version // 1000}.{version % 1000 // 10}",
            "cuda_bindings": _bindings_version(),
        }

    def prepare(self, row: CopyRow, progress: Progress) -> Prepared:
        """Get one row ready."""
        for t in row.transfers:
            for a in (t.source, t.destination):
                if a != HOST and a not in self.contexts:
                    raise UnsupportedRowError(f"{a} has no CUDA context in this process")
        return DriverRow(self, row, progress)

    def close(self) -> None:
        """Give memory and contexts back; the process ends after it, and with it whatever could not be given back."""
        call = self.driver.call
        for (address, _), (pointer, _) in self._device_memory.items():
            self.current(address)
            call("cuMemFree", pointer)
        for memory in self._host_memory.values():
            self._free_host(memory)
        for device in list(self.devices.values())[: len(self.contexts)]:
            call("cuDevicePrimaryCtxRelease", device)


def _bindings_version() -> str:
    try:
        from cuda.bindings import __version__
    except ImportError:
        return "unknown"
    return str(__version__)
