"""One file per source of truth: a thin `read(host)` and pure `parse_*` functions."""
