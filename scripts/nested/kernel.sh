#!/usr/bin/env bash
# Prints the folder that holds an unpacked Debian cloud kernel (boot/vmlinuz-*,
# lib/modules/*). Downloads it once into the cache; a half-finished download
# or unpacking is never taken for a whole one, because the last step is a
# rename.
set -euo pipefail

cache=${XDG_CACHE_HOME:-$HOME/.cache}/guestprobe/nested
mkdir -p "$cache"
for d in "$cache"/linux-image-*-cloud-amd64; do
	[[ -d $d ]] && { echo "$d"; exit 0; }
done

find_package() { apt-cache depends linux-image-cloud-amd64 2>/dev/null | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1; }
pkg=$(find_package)
if [[ -z $pkg ]]; then
	echo "nested: reading the package lists (apt-get update)" >&2
	apt-get update -q >&2 || true
	pkg=$(find_package)
fi
[[ -n $pkg ]] || { echo "nested: no package linux-image-cloud-amd64 in the package lists; check the package sources" >&2; exit 1; }

tmp=$(mktemp -d "$cache/unpack.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
chmod 755 "$tmp"
echo "nested: downloading $pkg into $cache" >&2
(cd "$tmp" && apt-get download -q "$pkg" >&2) || {
	echo "nested: $pkg could not be downloaded; check the network and free space in $cache, then run the same command again" >&2
	exit 1
}
dpkg -x "$tmp"/*.deb "$tmp/root" || {
	echo "nested: $pkg could not be unpacked; check free space in $cache (df -h), then run the same command again" >&2
	exit 1
}
mv -T "$tmp/root" "$cache/$pkg" 2>/dev/null || [[ -d $cache/$pkg ]]
echo "$cache/$pkg"
