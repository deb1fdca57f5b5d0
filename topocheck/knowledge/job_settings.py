"""Settings that the ranks of one job must have alike."""

import functools
from typing import Literal

import msgspec

from topocheck.knowledge.tables import Source, Table


class JobSetting(msgspec.Struct, frozen=True):
    """A setting that must be equal on all ranks, and what happens where it is not."""

    name: str
    state: Literal["fail", "warn"]
    consequence: str
    source: Source


_SETTINGS = Table("job_settings", JobSetting, key=("name",))


@functools.cache
def job_setting(name: str) -> JobSetting | None:
    """Return the row of a setting, or None for one that ranks may have each for itself."""
    return next((r for r in _SETTINGS.rows() if r.name == name), None)
