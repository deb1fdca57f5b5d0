#!/bin/sh
# Slurm Epilog: may this node take another job? On a failed check the node is drained with the reason.
# Only a failed check ends with 1, since Slurm drains on anything but 0; a broken script must not empty a cluster.
(
    # shellcheck source-path=SCRIPTDIR source=common.sh
    . /usr/local/lib/topocheck/slurm-common.sh || exit 0
    judge
    [ $? -eq 1 ] || exit 0
    drain
    exit 1
)
[ $? -ne 1 ]
