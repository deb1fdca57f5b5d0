#!/bin/sh
# Slurm HealthCheckProgram: drain this node when a check fails; give it back when it was topocheck that drained it
# and nothing fails any more. A healthy node that was not drained costs no call of Slurm's.
(
    # shellcheck source-path=SCRIPTDIR source=common.sh
    . /usr/local/lib/topocheck/slurm-common.sh || exit 0
    # slurmd runs this once before it registers, when slurmctld may not answer for this node yet.
    up=$(/usr/bin/ps -o etimes= -p "$PPID" 2>/dev/null | /usr/bin/tr -d ' ')
    judge
    fit=$?
    [ "${up:-60}" -ge 3 ] || exit 0
    case $fit in
    0) [ ! -e "$MARKER" ] || resume ;;
    1) drain ;;
    esac
)
exit 0
