#!/bin/sh
# node-problem-detector plugin: read what the timer's `topocheck check --format prometheus` wrote. Its container has
# neither Python nor nvidia-smi, so this is plain shell. Usage: topocheck_npd.sh CHECK_ID|all [FILE [MAX_AGE_S]]
# Exit code 0: no problem; 1: problem; 2: cannot tell. One line of at most 80 bytes.
set -u
id=${1:?give a check id, or all}
file=${2:-/var/lib/prometheus/node-exporter/topocheck.prom}
max_age=${3:-900}

end() {
    printf '%.80s\n' "$2"
    exit "$1"
}

[ -r "$file" ] || end 2 "no result of topocheck at $file"
age=$(($(date +%s) - $(stat -c %Y "$file")))
[ "$age" -le "$max_age" ] || end 2 "the result of topocheck is $age s old"

code="" status="" applies="" failed=""
while IFS= read -r line; do
    case $line in
    'topocheck_exit_code '*) code=${line##* } ;;
    "topocheck_check_status{check=\"$id\","*) status=${line##* } ;;
    "topocheck_check_applicable{check=\"$id\","*) applies=${line##* } ;;
    'topocheck_finding_info{check='*'state="fail"'*)
        check=${line#*check=\"} subject=${line#*subject=\"}
        check=${check%%\"*} subject=${subject%%\"*}
        if [ "$id" = all ]; then
            failed=${failed:-"$check: $subject"}
        elif [ "$id" = "$check" ]; then
            failed=${failed:-"$subject"}
        fi
        ;;
    esac
done <"$file"

if [ "$id" = all ]; then
    case $code in
    0.0) end 0 "no check fails" ;;
    1.0) end 1 "${failed:-failed}" ;;
    *) end 2 "topocheck could not determine a required fact" ;;
    esac
fi
case $applies$status in
1.02.0) end 1 "${failed:-failed}" ;;
1.00.0 | 1.01.0) end 0 "no problem" ;;
0.0) end 0 "does not apply to this node" ;;
1.03.0) end 2 "unknown" ;;
*) end 2 "topocheck has no check $id" ;;
esac
