#!/usr/bin/env bash
# Install what a node of this machine needs and Debian or Ubuntu has: container runtime, network plugins, image builder.
#
#   tools/node_packages.sh
#
# For `make test-cluster` and `make cluster-demo`, on machines that may be changed: needs root and apt-get. Does nothing
# where everything is there; 20 s otherwise. No service is left running.
set -euo pipefail

declare -A package_of=(
    [containerd]=containerd [ctr]=containerd [runc]=runc [iptables]=iptables [conntrack]=conntrack [ip]=iproute2
    [gcc]=gcc [buildah]=buildah [skopeo]=skopeo [debootstrap]=debootstrap [fuse-overlayfs]=fuse-overlayfs [socat]=socat
    [nft]=nftables [openssl]=openssl
)

missing=()
for program in "${!package_of[@]}"; do
    PATH=$PATH:/usr/sbin:/sbin command -v "$program" >/dev/null || missing+=("${package_of[$program]}")
done
[ -x /usr/lib/cni/bridge ] || missing+=(containernetworking-plugins)
# The pause program is linked statically, and certificates are what registries are checked with.
[ -e /etc/ssl/certs/ca-certificates.crt ] || missing+=(ca-certificates)
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "node packages: as root, on Debian or Ubuntu: apt-get install ${missing[*]}" >&2
    exit 1
fi
echo "node packages: installing ${missing[*]}, usually 1 minute" >&2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# No daemon is started: the tests start their own.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
    trap 'rm -f "$policy" "$log"' EXIT
fi
if ! { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${missing[@]}"; } \
    >"$log" 2>&1 </dev/null; then
    tail -n 20 "$log" >&2
    echo "node packages: apt-get failed; the end of its log is above" >&2
    exit 1
fi
