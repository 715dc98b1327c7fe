#!/bin/sh
# Install Debian's packages into an image, and leave nothing of the installation that another one would write otherwise.
#
#   SNAPSHOT=20260918T000000Z install-packages.sh PACKAGE...
#
# SNAPSHOT is a moment of snapshot.debian.org, which keeps every state of Debian's archive: builds of one moment install
# the same versions, however late they run. Empty: what the sources of the base image offer today, which is for other
# distributions and for machines that reach a mirror only. Versions stand in the image either way: `dpkg-query -W`.
#
# SNAPSHOT_ARCHIVE is where snapshots are taken from, http://snapshot.debian.org/archive unless said otherwise. Not https:
# the base has no certificates yet, and apt checks signatures by the keys that the base brings.
set -eu
[ $# -gt 0 ] || { echo "install-packages.sh: which packages?" >&2; exit 2; }

options=
case ${SNAPSHOT:-} in
    "") ;;
    [0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9]T[0-9][0-9][0-9][0-9][0-9][0-9]Z)
        # shellcheck source=/dev/null
        . "${OS_RELEASE:-/etc/os-release}"
        if [ "$ID" != debian ]; then
            echo "SNAPSHOT: got '$SNAPSHOT' for a base of '$ID'; only Debian has snapshots: --build-arg SNAPSHOT=" >&2
            exit 2
        fi
        archive=${SNAPSHOT_ARCHIVE:-http://snapshot.debian.org/archive}
        list=$(mktemp)
        # An old state is expected to be out of date: its signatures count, its expiry does not.
        cat >"$list" <<LIST
deb [check-valid-until=no] $archive/debian/$SNAPSHOT $VERSION_CODENAME main
deb [check-valid-until=no] $archive/debian/$SNAPSHOT $VERSION_CODENAME-updates main
deb [check-valid-until=no] $archive/debian-security/$SNAPSHOT $VERSION_CODENAME-security main
LIST
        # apt reads it as a user of its own.
        chmod 644 "$list"
        # The last one: a server of snapshots that is asked too often answers late.
        options="-o Dir::Etc::SourceList=$list -o Dir::Etc::SourceParts=/dev/null -o Acquire::Retries=5"
        ;;
    *)
        echo "SNAPSHOT: got '$SNAPSHOT'; allowed: a moment such as 20260918T000000Z, or nothing" >&2
        exit 2
        ;;
esac

export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086 - several words, or none
apt-get $options update -qq
# shellcheck disable=SC2086
apt-get $options install -y -qq --no-install-recommends "$@"
[ -z "$options" ] || rm -f "$list"

# Logs and copies with times, caches with inodes, and keys that every container would share.
root=${ROOT_FOLDER:-}
rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/* "$root"/var/log/apt "$root"/var/log/*.log \
    "$root"/var/cache/ldconfig/aux-cache "$root"/var/cache/debconf/*-old "$root"/var/lib/dpkg/*-old \
    "$root"/etc/ssh/ssh_host_*
