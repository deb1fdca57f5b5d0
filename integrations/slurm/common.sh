# Shared by the Slurm scripts of topocheck; install as /usr/local/lib/topocheck/slurm-common.sh.
# POSIX shell. Slurm runs its scripts without a PATH, so every program has its full path.
# shellcheck shell=sh disable=SC2034 # some settings are for the scripts

# Settings; /etc/topocheck/slurm.env may set any of them anew (NAME=value lines).
TOPOCHECK=/usr/local/bin/topocheck
SCONTROL=/usr/bin/scontrol
STATE_DIR=/var/lib/topocheck # where "we drained this node" is remembered
BUDGET=10                    # whole seconds for one run of topocheck
ON_UNKNOWN=pass              # fail: also drain where it cannot be told what must be known
DEADLINE=5                   # seconds for one call of scontrol
POLICY=                      # policy file; empty: TOPOCHECK_POLICY or /etc/topocheck/policy.toml
METRICS=                     # file for Prometheus' textfile collector; empty: none
ON_TASK_FAIL=warn            # task_prolog.sh: warn, or cancel the task
SETTINGS=/etc/topocheck/slurm.env
# shellcheck disable=SC1090
[ ! -r "$SETTINGS" ] || . "$SETTINGS"

NODE=${SLURMD_NODENAME:-}
MARKER=$STATE_DIR/drained.$NODE

say() {
    /usr/bin/logger -t topocheck -- "$1" 2>/dev/null || printf '%s\n' "$1" >&2
}

# judge ARGS: run topocheck. 0: healthy; 1: no job may start here, and REASON says why; 2: could not tell.
judge() {
    [ -z "$POLICY" ] || set -- "$@" --policy "$POLICY"
    [ -z "$METRICS" ] || set -- "$@" --metrics "$METRICS"
    said=$(/usr/bin/timeout -k 2 $((BUDGET + 5)) "$TOPOCHECK" check --format slurm-prolog \
        --budget "$BUDGET" --on-unknown "$ON_UNKNOWN" "$@" 2>&1 </dev/null)
    rc=$?
    [ -z "$said" ] || say "$said"
    # The line of a finding, or of what could not be told, among what else was said on standard error.
    REASON=$(printf '%s\n' "$said" | /usr/bin/sed -n '/ - topocheck: [a-z0-9.-]*$/p' | /usr/bin/tail -n 1)
    case "$rc $REASON" in
    "0 ") return 0 ;;
    "0 "*) return 2 ;;
    "1 "*" - topocheck: "*) return 1 ;;
    esac
    # Wrong usage, a crash, no time left, no such program: not the node's fault as far as anyone can tell.
    REASON="could not judge this node (exit code $rc) - topocheck: unknown"
    say "$REASON"
    [ "$ON_UNKNOWN" = fail ] && return 1
    return 2
}

scontrol() {
    /usr/bin/timeout -k 1 "$DEADLINE" "$SCONTROL" "$@" </dev/null
}

# look: set STATE and OLD_REASON of this node as slurmctld has them.
look() {
    shown=$(scontrol show node -o "$NODE" 2>/dev/null) || return 1
    STATE=$(printf '%s\n' "$shown" | /usr/bin/sed -n 's/.* State=\([^ ]*\).*/\1/p')
    OLD_REASON=$(printf '%s\n' "$shown" | /usr/bin/sed -n 's/.* Reason=//p')
}

# drain: take the node out with REASON, unless somebody else's reason stands there.
drain() {
    [ -n "$NODE" ] && look || return 1
    case "$OLD_REASON" in
    "$REASON"*) case "$STATE" in *DRAIN*) return 0 ;; esac ;;
    "" | *" - topocheck: "* | "topocheck: "*) ;; # the last: as 0.1 wrote it
    *) return 0 ;;
    esac
    # The marker comes first: a node that is drained without it would never be looked at again.
    /usr/bin/mkdir -p "$STATE_DIR" && printf '%s\n' "$REASON" >"$MARKER"
    scontrol update "NodeName=$NODE" State=DRAIN "Reason=$REASON" || say "scontrol could not drain $NODE"
}

# resume: give the node back, if it was topocheck that drained it.
resume() {
    [ -n "$NODE" ] && look || return 1
    case "$OLD_REASON" in
    *" - topocheck: "* | "topocheck: "*) scontrol update "NodeName=$NODE" State=RESUME || return 1 ;;
    esac
    /usr/bin/rm -f "$MARKER"
}
