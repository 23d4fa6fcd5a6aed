# For .ci/run and .ci/night: parts with a name, a limit and a time, and a table of them at the end. Sourced, not run.
table=()
failed=()
part() { # part NAME SECONDS COMMAND...: a part that takes longer is ended, and has failed like any other
    local name=$1 limit=$2 began=$SECONDS status=0 note=
    shift 2
    printf '\n== %s (at most %d s)\n' "$name" "$limit" >&2
    # In the foreground, so that Ctrl-C reaches it; what it has started gets the signal too.
    timeout --foreground --kill-after=60 "$limit" "$@" || status=$?
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
times() { # times TITLE: the table
    printf '%s\n' "" "times of $1" "${table[@]}" "$(printf '%-34s%6d s' all $SECONDS)" >&2
    [ ${#failed[@]} -eq 0 ] || printf 'failed: %s\n' "$(IFS=,; echo "${failed[*]}")" >&2
}
