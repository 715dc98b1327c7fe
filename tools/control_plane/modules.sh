#!/usr/bin/env bash
# Print a folder with single files of Go modules, fetching what the cache lacks: <module>@<version>/<file>.
#
# modules.txt names them, each module with its checksum. Modules are downloaded whole (30 MB packed for Kubernetes), the
# named files are kept outside the clone, and the rest is deleted at once. Nothing is built. Cost: a minute once, then
# nothing and no network.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/go.sh"
kept=$cache/modules

has_all() { # FOLDER FILE...
    local folder=$1 file
    shift
    for file in "$@"; do [ -f "$folder/$file" ] || return 1; done
}

# fetch MODULE VERSION CHECKSUM FILE...
fetch() {
    local module=$1 version=$2 checksum=$3 work answer folder file
    shift 3
    say "fetching $module $version"
    work=$(mktemp -d "$cache/fetch.XXXXXX")
    # modules.txt holds the checksum, so the public database is not asked; some proxies cannot reach it.
    answer=$(cd "$work" && GOMODCACHE=$work GOFLAGS=-modcacherw GOWORK=off GOSUMDB=off GOTOOLCHAIN=local \
        "$go" mod download -json "$module@$version") || { rm -rf "$work"; die "$module $version cannot be had: $answer"; }
    folder=$(sed -n 's/^\t"Dir": "\(.*\)",$/\1/p' <<<"$answer")
    grep -qF "\"Sum\": \"$checksum\"" <<<"$answer" || {
        rm -rf "$work"
        die "$module $version: got $(sed -n 's/^\t"Sum": "\(.*\)",$/\1/p' <<<"$answer"), modules.txt says $checksum"
    }
    for file in "$@"; do
        mkdir -p "$kept/$module@$version/$(dirname "$file")"
        cp "$folder/$file" "$kept/$module@$version/$file.part" && mv "$kept/$module@$version/$file"{.part,}
    done
    rm -rf "$work"
}

main() {
    local module version checksum files go=
    mkdir -p "$kept"
    exec 9>"$cache/lock"
    flock -n 9 || { say "waiting for another build"; flock 9; }
    while read -r module version checksum files; do
        [[ $module != \#* ]] || continue
        # shellcheck disable=SC2086 # several files
        has_all "$kept/$module@$version" $files && continue
        [ -n "$go" ] || find_go
        # shellcheck disable=SC2086
        fetch "$module" "$version" "$checksum" $files
    done <"$here/modules.txt"
    echo "$kept"
}

main
