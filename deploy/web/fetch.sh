#!/bin/sh
# Puts the LiveKit client where the page looks for it. Its two files stand alone: nothing else is installed or run.
set -eu
cd "$(dirname "$0")"
version=$(sed -n 's/.*"livekit-client": *"\([^"]*\)".*/\1/p' package.json)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
npm pack --silent --pack-destination "$work" "livekit-client@$version" >/dev/null
tar -xzf "$work"/*.tgz -C "$work" package/dist

# file in the package, its SHA-256, name here
take() {
  got=$({ sha256sum "$work/package/dist/$1" 2>/dev/null || shasum -a 256 "$work/package/dist/$1"; } | cut -d' ' -f1)
  [ "$got" = "$2" ] || { echo "$1 of livekit-client $version is not the file that was reviewed" >&2; exit 1; }
  mv "$work/package/dist/$1" "$3"
}
take livekit-client.fm.worker.js b70e656b0313be1d37306624c50f93cfb0809a149ee08fa516e316541c53b8ad livekit-client.worker.js
take livekit-client.umd.js fb646f2260d84f91238d0a2dc10726c456631d6a26c7cafc43cfee5959b4d31d livekit-client.umd.min.js
