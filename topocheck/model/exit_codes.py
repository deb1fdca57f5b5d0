"""Exit codes of all commands (docs/checks.md, "Exit codes")."""

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_UNKNOWN = 3
"""What must be known could not be determined."""
EXIT_INTERRUPTED = 130
"""128 and SIGINT, as shells have it."""
