#!/usr/bin/env bash
# Run `make demo`, then `make test`, as a new user does: where nothing is installed but Python, make and a compiler.
#
#   tools/bare_machine.sh [--as-root] [--keep FOLDER] [--only demo|test] [ARGUMENT OF MAKE TEST...]
#     TESTS=tests/pod      for example: fewer tests
#     --as-root            not as an ordinary user
#     --keep FOLDER        make the machine there and leave it; one that is there already takes the commit and goes on
#     --only demo          or test: one of the two commands
#
# The machine is a chroot of Debian with the packages below, without git or anything else of this machine but its network:
# no package, cache or variable, except what says how package registries are reached. It holds a clone of the last commit.
# Prints how both commands end and what they took, and keeps all of their output in build/bare-machine. Everything runs in
# namespaces of its own, so that no process and no mount outlives it. Needs root, git and debootstrap, and 15 GB of disk.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
packages=(python3 python3-venv python3-dev make g++ ca-certificates)
certificates=/etc/ssl/certs/ca-certificates.crt
logs=$PWD/build/bare-machine
home=/home/bert

say() { echo "bare machine: $*" >&2; }
die() { say "$@"; exit 1; }

# Names of the variables that say how registries are reached.
network_variables() {
    compgen -e | grep -E '^(PIP_|UV_|SSL_CERT_|REQUESTS_CA_BUNDLE$|CURL_CA_BUNDLE$)|^(https?|all|no)_proxy$|^(HTTPS?|ALL|NO)_PROXY$' || true
}

# Runs a command in the machine as its root. $1: the machine's folder.
inside() {
    local root=$1
    shift
    # Mounts and processes end with the first process of these namespaces, whatever ends that.
    unshare --mount --pid --fork --kill-child --propagation private bash -c '
        set -eu
        root=$1
        shift
        mount -t proc proc "$root/proc"
        mount --rbind /sys "$root/sys"
        mount -t tmpfs -o mode=755 tmpfs "$root/dev"
        mkdir "$root/dev/pts" "$root/dev/shm"
        mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
        mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
        for name in null zero full random urandom tty; do
            touch "$root/dev/$name"
            mount --bind "/dev/$name" "$root/dev/$name"
        done
        ln -s pts/ptmx "$root/dev/ptmx"
        for link in fd: stdin:/0 stdout:/1 stderr:/2; do ln -s "/proc/self/fd${link#*:}" "$root/dev/${link%%:*}"; done
        # Not exec: orphans need somebody to wait for them.
        chroot "$root" "$@" || exit $?
    ' inside "$root" "$@"
}

# $1: an existing file or folder of this machine, which the other one finds at the same path.
hand_over() {
    [ -e "$1" ] || return 0
    mkdir -p "$root$(dirname "$1")"
    cp -rL "$1" "$root$(dirname "$1")/"
}

make_machine() {
    local archive name
    archive=$(tools/debian_base.sh)
    say "installing ${packages[*]}, usually 1 minute"
    mkdir -p "$root"
    tar -C "$root" -xf "$archive"
    # The second names this machine itself, which every Linux has: ranks meet by it.
    for name in /etc/resolv.conf /etc/hosts; do hand_over "$name"; done
    inside "$root" env DEBIAN_FRONTEND=noninteractive sh -c '
        apt-get -qq update && apt-get -qq install -y --no-install-recommends "$@" && apt-get clean &&
            useradd --create-home --shell /bin/bash --home-dir '"$home"' bert' sh "${packages[@]}" >"$logs/packages.log" 2>&1 ||
        { tail -n 20 "$logs/packages.log" >&2; die "apt-get failed; the end of its log is above"; }
    # A site may have a certificate of its own, and an index of its own.
    for name in "$certificates" /etc/pip.conf /etc/uv/uv.toml; do hand_over "$name"; done
    for name in pip/pip.conf uv/uv.toml; do
        [ ! -e "$HOME/.config/$name" ] || install -D "$HOME/.config/$name" "$root$home/.config/$name"
    done
    # What those variables name, unless it is a folder of everything.
    for name in $(network_variables); do
        [[ ${!name} != /* ]] || [ ! -f "${!name}" ] || hand_over "${!name}"
    done
    git clone -q --no-hardlinks . "$root$home/clone"
}

update_clone() {
    say "going on in $root"
    git -c safe.directory='*' -C "$root$home/clone" fetch -q "$PWD" HEAD
    git -c safe.directory='*' -C "$root$home/clone" reset -q --hard FETCH_HEAD
}

# $1: demo or test; the rest: more words for make. Prints how it ends.
run_target() {
    local target=$1 started=$SECONDS status=0 name variables=()
    shift
    for name in $(network_variables); do variables+=("$name=${!name}"); done
    say "make $target${*:+ $*}; its output: $logs/$target.log"
    inside "$root" chroot --userspec="$user:$user" / env -i HOME="$home" USER="$user" LOGNAME="$user" SHELL=/bin/bash \
        PATH=/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8 TERM=dumb "${variables[@]}" \
        bash -c 'cd ~/clone && exec make "$@"' make "$target" "$@" >"$logs/$target.log" 2>&1 </dev/null || status=$?
    tail -n 40 "$logs/$target.log"
    say "make $target: exit code $status after $((SECONDS - started)) s"
    [ "$status" = 0 ] || failed+=("$target")
}

main() {
    local tool keep='' targets=(demo test) target
    user=bert failed=()
    while [[ ${1:-} == --* ]]; do
        case $1 in
            --as-root) user=root ;;
            --keep) keep=$(realpath -m "${2:?--keep: which folder?}") && shift ;;
            --only) targets=("${2:?--only: demo or test?}") && shift ;;
            *) die "got '$1'; allowed: --as-root, --keep FOLDER, --only demo|test, then words for make test" ;;
        esac
        shift
    done
    [ "$(id -u)" = 0 ] || die "needs root, for a chroot"
    for tool in debootstrap git unshare chroot; do
        command -v "$tool" >/dev/null || die "$tool is not installed (Debian, Ubuntu: apt-get install debootstrap git util-linux)"
    done
    mkdir -p "$logs"
    root=${keep:-$(mktemp -d -p /var/tmp bare-machine.XXXXXX)}
    [ -n "$keep" ] || trap 'rm -rf --one-file-system "$root"' EXIT
    if [ -d "$root$home/clone" ]; then update_clone; else make_machine; fi
    chown -R "$(inside "$root" id -u "$user"):$(inside "$root" id -g "$user")" "$root$home"
    for target in "${targets[@]}"; do
        if [ "$target" = test ]; then run_target test "$@"; else run_target "$target"; fi
    done
    [ ${#failed[@]} = 0 ] || die "failed: make ${failed[*]}"
}

main "$@"
