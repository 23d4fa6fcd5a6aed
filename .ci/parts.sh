# For .ci/run and .ci/night: parts with a name, a limit and a time, and a table of them at the end. Sourced, not run.
table=()
failed=()
running= # the part that runs now
ends=${ends:-} # seconds after which no part runs any more; "": each has its own limit alone
trap 'exit 130' INT
trap 'exit 143' TERM
part() { # part NAME SECONDS COMMAND...: a part that takes longer is ended with all that it started, and has failed
    local name=$1 limit=$2 began=$SECONDS status=0 note=
    shift 2
    [ -z "$ends" ] || [ $((ends - SECONDS)) -ge "$limit" ] || limit=$((ends > SECONDS ? ends - SECONDS : 1))
    printf '\n== %s (at most %d s)\n' "$name" "$limit" >&2
    # In a process group of its own, and waited for: a signal to this script is heard at once.
    timeout --kill-after=60 "$limit" "$@" &
    running=$!
    wait "$running" || status=$?
    running=
    case $status in
        0) ;;
        124 | 137) note="  took longer than $limit s" ;;
        *) note="  exit status $status" ;;
    esac
    [ "$status" = 0 ] || failed+=("$name")
    table+=("$(printf '%-34s%6d s%s' "$name" $((SECONDS - began)) "$note")")
    return "$status"
}
forgive() { # forgive NAME: a part that failed, and whose failures did not come again
    local name rest=()
    for name in "${failed[@]}"; do [ "$name" = "$1" ] || rest+=("$name"); done
    failed=("${rest[@]}")
}
times() { # times TITLE: end the part that runs, and print the table
    [ -z "$running" ] || { kill "$running" && wait "$running"; } 2>/dev/null || true
    printf '%s\n' "" "times of $1" "${table[@]}" "$(printf '%-34s%6d s' all $SECONDS)" >&2
    [ ${#failed[@]} -eq 0 ] || printf 'failed: %s\n' "$(IFS=,; echo "${failed[*]}")" >&2
}
