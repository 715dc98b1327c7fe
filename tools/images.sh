#!/usr/bin/env bash
# Build images with buildah and skopeo for a node without a registry, and print the folder (an OCI image layout) that holds them.
#
#   tools/images.sh [--release | --rehearse] [--fresh] [--output FOLDER] [NAME...]        default: operator trainer
#
# NAME is operator, trainer (Open MPI 5), a flavour of the trainer (trainer-open-mpi-4, trainer-mpich,
# trainer-intel-mpi), trainer-cuda (Open MPI 5 and NCCL), or one with an older torch and without Horovod: trainer-v100
# (CUDA 12.6) or trainer-ort (ONNX Runtime's training). The layout holds each as NAME, layers uncompressed and
# layers that images share once, so that a flavour adds some 150 MB to the trainer's 4 GB. For tests and
# `make cluster-demo`, which import them as bert-operator.test/NAME:dev (tools/local_cluster/image_layout.py); with Docker,
# `docker build -f images/NAME/Dockerfile .` does the same. The layout lies outside the clone. An image whose inputs have not changed is not built again, and what
# no image needs any more is deleted. The base image is made by debootstrap, once, and packages come from the machine's mirror.
#
# --release builds what is published: on the base that the Dockerfile names by digest, with packages of its snapshot.
# --rehearse does the same on the base made here. Both leave out what the tests need and nobody may publish.
# --fresh builds again what is there, from nothing (releases always do), Horovod too. --output is another folder for the
# layout.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cache=${XDG_CACHE_HOME:-$HOME/.cache}/bert-operator
layout=$cache/images/layout
base=docker.io/library/debian:bookworm-slim
stand_in=1 fresh=0 kind=test
export BUILDAH_ISOLATION=${BUILDAH_ISOLATION:-chroot} STORAGE_DRIVER=${STORAGE_DRIVER:-overlay}

names="operator, trainer, trainer-cuda, trainer-v100, trainer-ort, trainer-open-mpi-4, trainer-mpich, trainer-intel-mpi"

say() { echo "images: $*" >&2; }
die() { say "$@"; exit 1; }

inputs_of() {
    case $1 in
        operator) echo images/operator images/install-packages.sh operator/bert_operator trainer/bert_job pyproject.toml ;;
        trainer | trainer-cuda | trainer-v100 | trainer-ort | trainer-open-mpi-4 | trainer-mpich | trainer-intel-mpi)
            echo images/trainer images/install-packages.sh trainer/bert_job trainer/bert_trainer tools/horovod_wheel.sh \
                tools/horovod.lock tools/cuda-compiler.lock ;;
    esac
}

# Words for buildah, one argument of the Dockerfile each.
arguments_of() {
    case $1 in
        trainer-cuda) echo "--build-arg=ACCELERATOR=cuda" ;;
        trainer-v100)
            echo "--build-arg=ACCELERATOR=cuda --build-arg=COLLECTIVES=torch --build-arg=LOCK=locks/torch-2.7.lock" ;;
        trainer-ort) echo "--build-arg=COLLECTIVES=torch --build-arg=LOCK=locks/ort.lock" ;;
        trainer-*) echo "--build-arg=MPI=${1#trainer-}" ;;
    esac
}

# What a build usually takes on two cores, with what it downloads.
minutes_of() {
    case $1 in
        operator) echo "1 minute" ;;
        trainer) echo "4 minutes, 7 where Horovod is not in the cache" ;;
        trainer-cuda) echo "15 minutes" ;;
        trainer-v100 | trainer-ort) echo "14 minutes" ;;
        *) echo "2 minutes, 5 where Horovod is not in the cache" ;;
    esac
}

key_of() {
    # Names and contents; what Python and compilers leave behind does not count.
    # shellcheck disable=SC2046 - several words
    { find $(inputs_of "$1") -type f -not -path '*/__pycache__/*' -not -path '*/backends/cpu/lib/*' -print0 | sort -z | xargs -0 sha256sum; echo "$1"
        [ "$kind" = test ] || echo "$kind"; } |
        sha256sum | cut -c1-16
}

make_base() {
    buildah inspect --type image "$base" >/dev/null 2>&1 && return
    local folder archive
    archive=$(tools/debian_base.sh)
    folder=$(mktemp -d)
    ln "$archive" "$folder/base.tar" 2>/dev/null || cp "$archive" "$folder/base.tar"
    printf 'FROM scratch\nADD base.tar /\nCMD ["bash"]\n' >"$folder/Dockerfile"
    buildah build -q -t "$base" "$folder" >/dev/null
    rm -rf "$folder"
}

build() {
    local name=$1 key=$2 started=$SECONDS work time options=(--network host)
    if [ "$stand_in" = 1 ]; then
        make_base
        # Its packages come from the mirror that the machine reaches, which keeps no snapshots.
        options+=(--pull=never --build-arg="BASE=$base" --build-arg=SNAPSHOT=)
    fi
    # Jobs of the tests run with it.
    [ "$name" = operator ] || [ "$kind" != test ] || options+=(--build-arg=OPENMP=intel)
    if [ "$fresh" = 1 ]; then options+=(--no-cache); else options+=(--layers); fi
    # Of every file and of the image itself; without it a build differs from the one before in all of them.
    time=$(sed -n 's/^ARG SOURCE_DATE_EPOCH=//p' "images/${name%%-*}/Dockerfile")
    options+=(--timestamp "$time")
    work=$(mktemp -d)
    # Package indexes may be reached through a certificate of the site; pip inside is told of the machine's bundle.
    if [ -r "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}" ]; then
        printf '[global]\ncert = /run/host-certificates.crt\n' >"$work/pip.conf"
        options+=(-v "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}:/run/host-certificates.crt:ro")
        options+=(-v "$work/pip.conf:/etc/pip.conf:ro")
    fi
    # Wheels of Horovod that were compiled for the same Python, torch and MPI.
    [ "$name" = operator ] || [ "$fresh" = 1 ] || options+=(-v "$cache:/wheels/bert-operator")
    say "building $name, usually $(minutes_of "$name")"
    # shellcheck disable=SC2046 - several words, or none
    buildah build "${options[@]}" $(arguments_of "$name") -f "images/${name%%-*}/Dockerfile" \
        -t "bert-operator.test/$name:$key" . >"$work/log" 2>&1 ||
        { tail -n 40 "$work/log" >&2; rm -rf "$work"; die "building $name failed; the end of its log is above"; }
    rm -f "$layout/$name.key"
    # buildah would compress the layers, which takes minutes; skopeo also skips those that are there already.
    skopeo copy -q --dest-oci-accept-uncompressed-layers "containers-storage:bert-operator.test/$name:$key" \
        "oci:$layout:$name" >/dev/null 2>"$work/log" ||
        { cat "$work/log" >&2; rm -rf "$work"; die "packing $name failed"; }
    echo "$key" >"$layout/$name.key"
    rm -rf "$work"
    [ "$layout" != "$cache/images/layout" ] || forget_older "$name" "$key"
    say "built $name in $((SECONDS - started)) s"
}

# Images of this name that were built before, and blobs of the layout that no image needs.
forget_older() {
    local image
    for image in $(buildah images --format '{{.Name}}:{{.Tag}}' | grep "^bert-operator.test/$1:" | grep -v ":$2\$"); do
        buildah rmi "$image" >/dev/null 2>&1 || true # some build of another clone may stand on it
    done
    python3 - "$layout" <<'PY'
import json, pathlib, sys
layout = pathlib.Path(sys.argv[1])
blobs = layout / "blobs/sha256"
index = json.loads((layout / "index.json").read_text())
# skopeo takes the name from the image that had it, and leaves that in the index.
index["manifests"] = [image for image in index["manifests"] if image.get("annotations")]
(layout / "index.part").write_text(json.dumps(index))
(layout / "index.part").replace(layout / "index.json")
needed = set()
for image in index["manifests"]:
    digest = image["digest"].removeprefix("sha256:")
    manifest = json.loads((blobs / digest).read_text())
    parts = [manifest["config"], *manifest["layers"]]
    needed |= {digest} | {part["digest"].removeprefix("sha256:") for part in parts}
for blob in blobs.iterdir():
    if blob.name not in needed:
        blob.unlink()
PY
}

main() {
    local name key tool
    while [[ ${1:-} == --* ]]; do
        case $1 in
            --release) stand_in=0 fresh=1 kind=release ;;
            --rehearse) fresh=1 kind=rehearsal ;;
            --fresh) fresh=1 ;;
            --output) layout=${2:?--output: which folder?} && shift ;;
            *) die "got '$1'; allowed: --release, --rehearse, --fresh, --output FOLDER" ;;
        esac
        shift
    done
    [ $# -gt 0 ] || set -- operator trainer
    for name in "$@"; do
        [ -n "$(inputs_of "$name")" ] ||
            die "got '$name'; allowed: $names"
    done
    for tool in buildah skopeo debootstrap flock python3; do
        command -v "$tool" >/dev/null || die "$tool is not installed (Debian, Ubuntu: apt-get install buildah skopeo debootstrap)"
    done
    mkdir -p "$layout"
    # Whoever reads the layout holds the lock too.
    mkdir -p "$cache/images"
    exec 9>"$cache/images/lock"
    flock 9
    for name in "$@"; do
        key=$(key_of "$name")
        [ "$fresh" = 0 ] && [ "$(cat "$layout/$name.key" 2>/dev/null)" = "$key" ] || build "$name" "$key"
    done
    echo "$layout"
}

main "$@"
