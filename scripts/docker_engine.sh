#!/usr/bin/env bash
# A Docker engine on a bare Debian or Ubuntu machine, for CI and for people. Every command may be repeated.
#   scripts/docker_engine.sh install      engine, buildx and compose (Debian's packages; on bookworm those of trixie), with
#                                         iptables, tini, debootstrap and ca-certificates; no service is started by it
#   scripts/docker_engine.sh kubectl      kubectl, with which Kustomize comes (Debian's package; on bookworm that of trixie)
#   scripts/docker_engine.sh start        start dockerd, unless an engine answers already
#   scripts/docker_engine.sh base-image   make debian:bookworm-slim with debootstrap where no registry can be reached
#   scripts/docker_engine.sh stop         stop the dockerd that `start` started, and only that one
#   scripts/docker_engine.sh status       exit 0 if an engine answers
# Only these packages change on the machine: trixie is a source for these commands alone. They wait while another apt is
# at work.
# LABS_DOCKER_DIR   folder of the pid file, log and images of our dockerd (default /var/lib/labs-docker)
set -euo pipefail

state=${LABS_DOCKER_DIR:-/var/lib/labs-docker}
base=debian:bookworm-slim
engine_needed=25 compose_needed=2.24.4
apt_waits_s=300
work=
trap '[ -z "$work" ] || rm -rf "$work"' EXIT

say() { printf '  ..  %s\n' "$1" >&2; }
fail() { printf 'error: %s\ntry:   %s\n' "$1" "$2" >&2; exit 1; }
as_root() { [ "$(id -u)" = 0 ] || fail "'$1' needs root" "sudo $0 $1"; }
answers() { timeout 5 docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }
at_least() { [ "$(printf '%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]; }

compose_is_good() {
    local version
    version=$(docker compose version --short 2>/dev/null) && at_least "$compose_needed" "${version#v}" \
        && docker buildx version >/dev/null 2>&1
}

# It says "Docker version 26.1.5+dfsg1, build ...".
engine_is_good() { at_least "$engine_needed" "$(dockerd --version | awk '{print $3}')"; }

apt() { apt-get -q -o "DPkg::Lock::Timeout=$apt_waits_s" "${apt_options[@]}" "$@"; }
apt_options=()

# Debian 12's own engine (20.10) knows no named build contexts; trixie's needs only libc 2.34, which 12 has. A source at the
# lowest priority gives these packages and nothing else from the newer suite; apt keeps all of it in a folder that goes.
with_newer_suite() {
    local uri
    uri=$(awk '/^URIs:/ {print $2; exit}' /etc/apt/sources.list.d/debian.sources 2>/dev/null || true)
    [ -n "$uri" ] || uri=$(awk '$1 == "deb" && $3 ~ /^bookworm/ {print $2; exit}' /etc/apt/sources.list 2>/dev/null || true)
    [ -n "$uri" ] || fail "no Debian source found in /etc/apt" "install a Docker engine $engine_needed or newer another way"
    work=$(mktemp -d)
    chmod 755 "$work" # apt fetches as a user of its own
    mkdir -p "$work/lists/partial" "$work/sources" "$work/preferences"
    cp -r /etc/apt/sources.list.d/. "$work/sources/" 2>/dev/null || true
    cp -r /etc/apt/preferences.d/. "$work/preferences/" 2>/dev/null || true
    cat >"$work/sources/labs-docker.sources" <<SOURCE
Types: deb
URIs: $uri
Suites: trixie
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
SOURCE
    printf 'Package: *\nPin: release n=trixie\nPin-Priority: 50\n' >"$work/preferences/labs-docker"
    apt_options=(-o "Dir::Etc::SourceParts=$work/sources" -o "Dir::Etc::PreferencesParts=$work/preferences"
        -o "Dir::State::Lists=$work/lists" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache=)
    say "packages of $uri trixie, which is a source for this command alone"
}

install_engine() {
    if command -v dockerd >/dev/null && compose_is_good && engine_is_good; then
        say "an engine is installed: $(dockerd --version)"
        return
    fi
    as_root install
    command -v apt-get >/dev/null || fail "this is not Debian or Ubuntu" "install Docker as your system does"
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC1091
    . /etc/os-release
    local packages=(docker.io docker-cli docker-buildx docker-compose containerd)
    case "$ID:${VERSION_ID:-}" in
        debian:12) with_newer_suite; packages=("${packages[@]/%//trixie}") ;;
        debian:*) ;;
        ubuntu:*) packages=(docker.io docker-buildx docker-compose-v2) ;;
        *) fail "no recipe for $ID ${VERSION_ID:-}" "install Docker as your system does" ;;
    esac
    packages+=(iptables tini debootstrap ca-certificates)
    say "installing ${packages[*]} (apt; at most $apt_waits_s s until another apt has ended)"
    apt update >/dev/null
    # A policy keeps the package from starting a dockerd that `stop` would not stop. The policy is removed afterwards.
    local policy=/usr/sbin/policy-rc.d made=
    [ -e "$policy" ] || { printf '#!/bin/sh\nexit 101\n' >"$policy"; chmod 755 "$policy"; made=1; }
    local ok=1
    apt install -y --no-install-recommends "${packages[@]}" >/tmp/labs-apt.$$ 2>&1 || ok=
    [ -z "$made" ] || rm -f "$policy"
    [ -n "$ok" ] || { tail -20 "/tmp/labs-apt.$$" >&2; rm -f "/tmp/labs-apt.$$"; fail "apt could not install the engine" "see above"; }
    rm -f "/tmp/labs-apt.$$"
    hash -r
    engine_is_good || fail "the engine is older than $engine_needed" "install a Docker engine $engine_needed or newer another way"
    compose_is_good || fail "'docker compose' is missing or older than $compose_needed" "remove the docker client that comes first in PATH: $(command -v docker)"
}

install_kubectl() {
    if command -v kubectl >/dev/null && kubectl version --client 2>/dev/null | grep -q Kustomize; then
        say "kubectl is installed: $(kubectl version --client | head -n 1)"
        return
    fi
    as_root kubectl
    command -v apt-get >/dev/null || fail "this is not Debian or Ubuntu" "install kubectl as your system does"
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC1091
    . /etc/os-release
    local package=kubectl
    case "$ID:${VERSION_ID:-}" in
        debian:12) with_newer_suite; package=kubectl/trixie ;;
        debian:*) ;;
        *) fail "no recipe for $ID ${VERSION_ID:-}" "install kubectl as your system does" ;;
    esac
    say "installing $package (apt)"
    apt update >/dev/null
    apt install -y --no-install-recommends "$package" >/dev/null
}

start_engine() {
    if answers; then say "an engine answers already"; return; fi
    as_root start
    [ -z "${DOCKER_HOST:-}" ] || fail "nothing answers at DOCKER_HOST=$DOCKER_HOST" "unset DOCKER_HOST to use an engine of this machine"
    mkdir -p "$state"
    say "starting dockerd (log: $state/dockerd.log)"
    # dockerd gets a session of its own, so that a Ctrl-C at the terminal ends the caller and not the engine.
    setsid dockerd --data-root "$state/data" --exec-root /run/labs-docker --pidfile "$state/dockerd.pid" \
        --log-level warn >>"$state/dockerd.log" 2>&1 </dev/null &
    local child=$!
    for _ in $(seq 150); do
        if answers; then return; fi
        kill -0 "$child" 2>/dev/null || break
        sleep 0.2
    done
    tail -15 "$state/dockerd.log" >&2
    fail "dockerd did not start" "the log above"
}

stop_engine() {
    local pid
    pid=$(cat "$state/dockerd.pid" 2>/dev/null || true)
    if [ -z "$pid" ] || [ "$(cat "/proc/$pid/comm" 2>/dev/null || true)" != dockerd ]; then
        say "no dockerd of ours runs"
        return
    fi
    as_root stop
    say "stopping dockerd (pid $pid)"
    kill -TERM "$pid"
    for _ in $(seq 150); do
        [ -d "/proc/$pid" ] || return 0
        sleep 0.2
    done
    kill -KILL "$pid"
}

base_image() {
    if docker image inspect "$base" >/dev/null 2>&1; then say "$base is there"; return; fi
    if timeout 60 docker pull -q "$base" >/dev/null 2>&1; then say "$base pulled"; return; fi
    as_root base-image
    command -v debootstrap >/dev/null || fail "debootstrap is missing" "apt-get install debootstrap"
    say "no registry answers: making $base with debootstrap"
    local root
    root=$(mktemp -d)
    work=$root
    local mirror
    mirror=$(awk '/^URIs:/ {print $2; exit}' /etc/apt/sources.list.d/debian.sources 2>/dev/null || true)
    debootstrap --variant=minbase --include=ca-certificates bookworm "$root" ${mirror:+"$mirror"} >"$state/debootstrap.log" 2>&1 \
        || { tail -5 "$state/debootstrap.log" >&2; fail "debootstrap failed" "$state/debootstrap.log"; }
    rm -rf "$root"/var/cache/apt/*.bin "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* \
        "$root"/usr/share/{doc,man,locale,info}/*
    tar -C "$root" -c . | docker import --change 'CMD ["bash"]' - "$base" >/dev/null
}

case "${1:-}" in
    install) install_engine ;;
    kubectl) install_kubectl ;;
    start) start_engine ;;
    base-image) base_image ;;
    stop) stop_engine ;;
    status) answers ;;
    *) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
