#!/bin/sh
# Runs the scenarios of nccl_oracle.py on this machine and leaves logs, files and oracle.json in a folder.
# Usage: benchmarks/nccl_oracle.sh FOLDER [FILE that `topocheck nccl topo` wrote for this machine]
set -eu
out=${1:?usage: nccl_oracle.sh FOLDER [TOPOLOGY_FILE]}
here=$(dirname "$0")
nvidia-smi topo -m > /dev/null 2>&1 || echo "nvidia-smi does not answer" >&2
exec python3 "$here/nccl_oracle.py" run "$out" ${2:+"$2"}
