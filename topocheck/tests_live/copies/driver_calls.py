"""The CUDA driver through NVIDIA's own `cuda-bindings`: each call checked, each error with the call's name."""

from __future__ import annotations

from typing import Any


class DriverError(Exception):
    """A call of the CUDA driver failed. `call` is its name, `result` CUDA's name of the error."""

    def __init__(self, call: str, result: str, about: str = "") -> None:
        super().__init__(f"{call} said {result}" + (f" ({about})" if about else ""))
        self.call = call
        self.result = result


class Driver:
    """`Driver().call("cuMemAlloc", size)` returns what the call returns, without its status."""

    def __init__(self) -> None:
        try:
            from cuda.bindings import driver
        except ImportError as e:
            raise DriverError("import cuda.bindings.driver", f"{e}", "pip install cuda-bindings") from None
        self.module: Any = driver

    def call(self, name: str, *args: Any, about: str = "") -> Any:
        """Make one call and return its value, a tuple of values, or None.

        Raises:
            DriverError: it did not succeed, or this binding or driver does not have it.
        """
        function = getattr(self.module, name, None)
        if function is None:
            raise DriverError(name, "not in this version of cuda-bindings", about)
        try:
            answer = function(*args)
        except (RuntimeError, OSError) as e:
            # The binding raises where libcuda is not there or lacks the function.
            raise DriverError(name, f"{type(e).__name__}: {str(e)[:200]}", about) from None
        status, *values = answer
        if int(status) != 0:
            raise DriverError(name, getattr(status, "name", str(int(status))), about)
        if not values:
            return None
        return values[0] if len(values) == 1 else tuple(values)
