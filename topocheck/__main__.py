"""`python -m topocheck`."""

from topocheck.cli.main import main

main()
