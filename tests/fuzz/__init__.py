"""A fuzzer: hostile input of every kind, through the commands as a user runs them.

`python -m tests.fuzz --help` says how to run it. A case (case.py) is a command line with its files, environment and
standard input. A target (targets/, one file each, found by walking the folder) makes cases from a random source; the
server (server.py) runs each in a process of its own, under limits; the oracles (oracles.py) say what is wrong with
what came out; what is found is made small (minimise.py) and kept as a file that `--replay` runs again.
"""
