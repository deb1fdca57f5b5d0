#!/bin/sh
# LSF HOST_PRE_EXEC: may a job start on this host? Runs on every host of the job. Exit code 1, which
# PREEXEC_EXCLUDE_HOST_EXIT_VALUES makes LSF avoid the host for this job, only where a check failed: a broken script must
# not empty a cluster. LSF sends standard output to /dev/null, so what is found goes to syslog (tag topocheck).
TOPOCHECK=${TOPOCHECK:-/usr/local/bin/topocheck}
BUDGET=${TOPOCHECK_BUDGET:-10} # whole seconds; keep JOB_PREPROC_TIMEOUT above it

said=$(/usr/bin/timeout -k 2 $((BUDGET + 5)) "$TOPOCHECK" check --format slurm-prolog --budget "$BUDGET" \
    2>&1 </dev/null)
rc=$?
[ -z "$said" ] || /usr/bin/logger -t topocheck -- "$said" 2>/dev/null || printf '%s\n' "$said" >&2
case "$rc $said" in
"1 "*" - topocheck: "*) exit 1 ;;
esac
exit 0
