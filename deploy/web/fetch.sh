#!/bin/sh
# Puts the LiveKit client where the page looks for it. The bundle stands alone: nothing else is installed, nothing runs.
set -eu
cd "$(dirname "$0")"
version=$(sed -n 's/.*"livekit-client": *"\([^"]*\)".*/\1/p' package.json)
sum=fb646f2260d84f91238d0a2dc10726c456631d6a26c7cafc43cfee5959b4d31d
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
npm pack --silent --pack-destination "$work" "livekit-client@$version" >/dev/null
tar -xzf "$work"/*.tgz -C "$work" package/dist/livekit-client.umd.js
bundle=$work/package/dist/livekit-client.umd.js
got=$({ sha256sum "$bundle" 2>/dev/null || shasum -a 256 "$bundle"; } | cut -d' ' -f1)
[ "$got" = "$sum" ] || { echo "livekit-client $version is not the file that was reviewed" >&2; exit 1; }
mv "$bundle" livekit-client.umd.min.js
