#!/usr/bin/env bash
# Make Debian's smallest base by debootstrap, once on a machine, and print the archive (a tar of its root) that holds it.
#
#   tools/debian_base.sh
#
# For tools/images.sh, where Docker Hub is out of reach, and tools/bare_machine.sh. Needs root and debootstrap
# (Debian, Ubuntu: apt-get install debootstrap). Kept outside the clone, so that only the first call costs a minute.
set -euo pipefail
release=bookworm
folder=${XDG_CACHE_HOME:-$HOME/.cache}/bert-operator/debian
archive=$folder/$release.tar

say() { echo "debian base: $*" >&2; }

mkdir -p "$folder"
exec 9>"$folder/lock"
flock 9
if [ ! -e "$archive" ]; then
    say "making Debian $release with debootstrap, usually 1 minute"
    work=$(mktemp -d)
    trap 'rm -rf --one-file-system "$work"' EXIT
    debootstrap --variant=minbase "$release" "$work/root" >"$work/log" 2>&1 ||
        { tail -n 20 "$work/log" >&2; say "debootstrap failed; the end of its log is above"; exit 1; }
    tar -C "$work/root" --exclude='./var/cache/apt/*' --exclude='./var/lib/apt/lists/*' --exclude='./usr/share/locale/*' \
        --exclude='./usr/share/man/*' -cf "$archive.part" .
    mv "$archive.part" "$archive"
fi
echo "$archive"
