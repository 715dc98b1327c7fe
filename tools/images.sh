#!/usr/bin/env bash
# Build the images with buildah and print a folder with operator.tar and trainer.tar, for a node without a registry.
#
#   tools/images.sh [operator] [trainer]        default: both
#
# For tests and `make cluster-demo`; with Docker, `docker build -f images/NAME/Dockerfile .` does the same. An archive
# is kept outside the clone, named after everything that its image is made of, and older ones of the same image are
# deleted (the trainer's has 6.5 GB). The base image is made by debootstrap, once. Cost on two cores: 3 minutes for
# both the first time, with Horovod's wheel in the cache; half a minute after a change of the code.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cache=${XDG_CACHE_HOME:-$HOME/.cache}/bert-operator
images=$cache/images
base=docker.io/library/debian:bookworm-slim
export BUILDAH_ISOLATION=${BUILDAH_ISOLATION:-chroot} STORAGE_DRIVER=${STORAGE_DRIVER:-overlay}

say() { echo "images: $*" >&2; }
die() { say "$@"; exit 1; }

inputs_of() {
    case $1 in
        operator) echo images/operator operator/bert_operator ;;
        trainer) echo images/trainer trainer/bert_trainer tools/horovod_wheel.sh tools/horovod.sha256 ;;
    esac
}

key_of() {
    # Names and contents; what Python leaves behind does not count.
    # shellcheck disable=SC2046 - several words
    find $(inputs_of "$1") -type f -not -path '*/__pycache__/*' -print0 | sort -z | xargs -0 sha256sum |
        sha256sum | cut -c1-16
}

make_base() {
    buildah inspect --type image "$base" >/dev/null 2>&1 && return
    say "making $base with debootstrap"
    local folder
    folder=$(mktemp -d)
    debootstrap --variant=minbase bookworm "$folder/root" >"$folder/log" 2>&1 || { tail -n 20 "$folder/log" >&2; die "debootstrap failed"; }
    tar -C "$folder/root" -cf "$folder/base.tar" .
    rm -rf "$folder/root"
    printf 'FROM scratch\nADD base.tar /\nCMD ["bash"]\n' >"$folder/Dockerfile"
    buildah build -q -t "$base" "$folder" >/dev/null
    rm -rf "$folder"
}

build() {
    local name=$1 key=$2 started=$SECONDS work options=(--layers --network host --pull=never)
    make_base
    work=$(mktemp -d)
    # Package indexes may be reached through a certificate of the site; pip inside is told of the machine's bundle.
    if [ -r "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}" ]; then
        printf '[global]\ncert = /run/host-certificates.crt\n' >"$work/pip.conf"
        options+=(-v "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}:/run/host-certificates.crt:ro")
        options+=(-v "$work/pip.conf:/etc/pip.conf:ro")
    fi
    mkdir -p "$cache"
    # The wheel that set-up compiled for the same Python, torch and MPI.
    [ "$name" != trainer ] || options+=(-v "$cache:/wheels/bert-operator")
    say "building $name"
    buildah build "${options[@]}" -f "images/$name/Dockerfile" -t "bert-operator.test/$name:$key" . >"$work/log" 2>&1 ||
        { tail -n 40 "$work/log" >&2; rm -rf "$work"; die "building $name failed; the end of its log is above"; }
    rm -f "$images/$name"-*.tar
    buildah push -q "bert-operator.test/$name:$key" \
        "docker-archive:$images/$name-$key.tar.part:bert-operator.test/$name:dev" >/dev/null 2>"$work/log" ||
        { cat "$work/log" >&2; rm -rf "$work"; die "packing $name failed"; }
    mv "$images/$name-$key.tar.part" "$images/$name-$key.tar"
    rm -rf "$work"
    say "built $name in $((SECONDS - started)) s"
}

main() {
    local name key
    [ $# -gt 0 ] || set -- operator trainer
    for name in "$@"; do
        [ -n "$(inputs_of "$name")" ] || die "got '$name'; allowed: operator, trainer"
    done
    mkdir -p "$images"
    exec 9>"$images/lock"
    flock 9
    for name in "$@"; do
        key=$(key_of "$name")
        [ -f "$images/$name-$key.tar" ] || build "$name" "$key"
        ln -sfn "$name-$key.tar" "$images/$name.tar"
    done
    echo "$images"
}

main "$@"
