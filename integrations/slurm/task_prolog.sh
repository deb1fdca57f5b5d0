#!/bin/sh
# Slurm TaskProlog: check what only the task itself can see (its environment, limits, CPUs, devices), once per node.
# Standard output is read by slurmstepd; a line `print TEXT` reaches the user. Non-zero would cancel the task.
[ "${SLURM_LOCALID:-0}" = 0 ] || exit 0
(
    # shellcheck source-path=SCRIPTDIR source=common.sh
    . /usr/local/lib/topocheck/slurm-common.sh || exit 0
    METRICS=
    judge --scope process
    [ $? -eq 1 ] || exit 0
    printf 'print %s\n' "$REASON"
    [ "$ON_TASK_FAIL" != cancel ]
)
[ $? -ne 1 ]
