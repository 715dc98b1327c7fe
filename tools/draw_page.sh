#!/usr/bin/env bash
# Draw an HTML page as a picture, as the documentation shows reports: headless Chromium, without a network.
#
#   tools/draw_page.sh PAGE.html PICTURE.png [WIDTH [HEIGHT]]
#
# What docs/images/report.png shows is runs/demo/report.html after make demo.
set -euo pipefail
page=$(realpath "$1")
picture=$(realpath -m "$2")
command -v chromium >/dev/null || { echo "draw_page: requires chromium (apt-get install chromium)" >&2; exit 1; }
profile=$(mktemp -d)
trap 'rm -rf "$profile"' EXIT
sandbox=()
[ "$(id -u)" != 0 ] || sandbox=(--no-sandbox)
chromium --headless=new --disable-gpu --disable-dev-shm-usage --hide-scrollbars "${sandbox[@]}" \
    --host-resolver-rules='MAP * ~NOTFOUND' --user-data-dir="$profile" --window-size="${3:-1000},${4:-1400}" \
    --screenshot="$picture" "file://$page" >"$profile/log" 2>&1 || { tail -n 5 "$profile/log" >&2; exit 1; }
