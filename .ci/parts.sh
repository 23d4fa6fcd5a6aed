# For .ci/run and .ci/night: parts with a name, a limit and a time; at the end a table of them, and the run's status.
# Sourced, not run. A part that fails, takes too long, is cut off or never runs makes the run red, and nothing takes that back.
table=()
failed=()
planned=() # what has still to run
running= # the part that runs now
ends=${ends:-} # seconds after which no part runs any more; "": each has its own limit alone
trap 'exit 130' INT
trap 'exit 143' TERM
plan() { planned+=("$@"); } # plan NAME...: a run in which one of these never runs has failed
part() { # part NAME SECONDS COMMAND...: a part that takes longer is ended with all that it started, and has failed
    running=$1 began=$SECONDS
    local limit=$2 status=0 each rest=()
    shift 2
    for each in "${planned[@]}"; do [ "$each" = "$running" ] || rest+=("$each"); done
    planned=("${rest[@]}")
    [ -z "$ends" ] || [ $((ends - SECONDS)) -ge "$limit" ] || limit=$((ends - SECONDS))
    if [ "$limit" -le 0 ]; then
        _over "never ran: the run's $ends s were over"
        return 124
    fi
    printf '\n== %s (at most %d s)\n' "$running" "$limit" >&2
    # In a process group of its own, and waited for: a signal to this script is heard at once.
    timeout --kill-after=60 "$limit" "$@" &
    wait $! || status=$?
    if [ "$status" = 0 ]; then
        _over
    elif [[ $status =~ ^(124|137)$ ]] && [ $((SECONDS - began)) -ge "$limit" ]; then
        _over "took longer than $limit s"
    else
        _over "exit status $status"
    fi
    return "$status"
}
conclude() { # conclude TITLE STATUS: ends the part that runs, prints the table, returns what the run has to exit with
    local title=$1 status=$2
    if [ -n "$running" ]; then
        # Its process group: a `timeout` that has only just begun would end without what it has started.
        { kill -- -$! || kill $!; wait $!; } 2>/dev/null || true
        _over "cut off"
    fi
    for running in "${planned[@]}"; do
        began=$SECONDS
        _over "never ran"
    done
    printf '%s\n' "" "times of $title" "${table[@]}" "$(printf '%-34s%6d s' all $SECONDS)" >&2
    [ ${#failed[@]} -gt 0 ] || return "$status"
    printf 'failed: %s\n' "$(printf '%s, ' "${failed[@]}" | sed 's/, $//')" >&2
    [ "$status" != 0 ] || status=1
    return "$status"
}
_over() { # _over [WHY]: the part that runs is over, and has failed if there is a reason
    [ $# = 0 ] || failed+=("$running")
    table+=("$(printf '%-34s%6d s%s' "$running" $((SECONDS - began)) "${1:+  $1}")")
    running=
}
