"""Exit codes of all commands (docs/checks.md, "Exit codes")."""

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_UNKNOWN = 3
"""What must be known could not be determined."""
EXIT_INTERRUPTED = {"SIGHUP": 129, "SIGINT": 130, "SIGTERM": 143}
"""128 and the number of the signal that asked to stop, as shells have it (bash(1), "EXIT STATUS")."""

MEANINGS = {
    EXIT_OK: "healthy; notes and warnings are allowed, unless `--strict`",
    EXIT_FAILED: "at least one check failed; with `--strict` also a warning or an unknown",
    EXIT_USAGE: "wrong usage, or input (policy, recording) that cannot be used",
    EXIT_UNKNOWN: "a required fact could not be determined: a probe or check that the policy requires is unknown",
}
"""Exit code -> what it means, for the pages that list them."""
