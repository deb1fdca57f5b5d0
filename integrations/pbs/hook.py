"""OpenPBS hook: may a job start on this node?

Events: execjob_begin (judges the node; a failed check takes the vnode offline and sends the job back to the queue)
and exechost_periodic (judges the node; gives back a vnode that this hook took offline, once nothing fails).
A rejection alone does not take a node offline, so the hook sets state and comment itself, and never touches a
comment that somebody else wrote.
"""

import subprocess

import pbs

TOPOCHECK = "/usr/local/bin/topocheck"
BUDGET_S = 10  # below the hook's alarm, 30 s unless set otherwise
MARK = " - topocheck: "


def is_ours(comment):
    """Whether topocheck wrote a comment: now, or as 0.1 did, which began with its name."""
    return MARK in comment or comment.startswith("topocheck: ")


def judge():
    """Return (True where healthy, False where a check failed, None where it could not be told; the reason)."""
    command = [TOPOCHECK, "check", "--format", "slurm-prolog", "--budget", str(BUDGET_S)]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BUDGET_S + 5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        pbs.logmsg(pbs.LOG_WARNING, f"topocheck could not judge this node: {e}")
        return None, ""
    reason = done.stdout.strip()
    if done.returncode == 1 and MARK in reason:
        return False, reason
    if done.returncode != 0 or reason or done.stderr.strip():
        said = " ".join([reason, done.stderr.strip()]).strip()
        pbs.logmsg(pbs.LOG_WARNING, f"topocheck, exit code {done.returncode}: {said}")
    return (True if done.returncode == 0 and not reason else None), ""


def main():
    """Act on the event."""
    event = pbs.event()
    vnode = event.vnode_list[pbs.get_local_nodename()]
    comment = str(vnode.comment or "")
    healthy, reason = judge()
    if healthy is False:
        if not comment or is_ours(comment):
            vnode.state = pbs.ND_OFFLINE
            vnode.comment = reason
        if event.type == pbs.EXECJOB_BEGIN:
            event.job.rerun()
            event.reject(reason)
    elif healthy and event.type == pbs.EXECHOST_PERIODIC and is_ours(comment):
        vnode.state = pbs.ND_FREE
        vnode.comment = None
    event.accept()


main()
