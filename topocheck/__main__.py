"""`python -m topocheck`."""

from topocheck.process.python import leave_current_folder

leave_current_folder()

from topocheck.cli.main import run  # noqa: E402 - not before the current folder is off the path

run()
