#!/usr/bin/env bash
# Makes all that a release has, in build/release: packages, an archive, a bill of materials, its notes, checksums; and the container's image
# where podman, docker or buildah can build one (IMAGE=no: not even then).
set -euo pipefail
cd "$(dirname "$0")/.."
version=${VERSION:-$(scripts/version.sh)}
export VERSION=$version SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
out=build/release
rm -rf "$out"
mkdir -p "$out"
# What users are told of the release: the newest section of the changelog, which must say something.
awk '/^## / { if (n++) exit; next } n { print }' CHANGELOG.md | sed -e '/./,$!d' >"$out/NOTES.md"
grep -q '^- ' "$out/NOTES.md" || { echo "release: the first section of CHANGELOG.md has no entry" >&2; exit 1; }
rm -rf build/package
scripts/package.sh deb rpm
mv build/package/*.deb build/package/*.rpm "$out/"
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -C build/package/tree -c . | gzip -9n >"$out/guestprobe-$version-linux-amd64.tar.gz"
bin/gpdev sbom . >"$out/guestprobe-$version.cdx.json"
if [[ ${IMAGE:-yes} != no ]]; then
	built='' image=guestprobe:${version//+/-} # names of images have no +
	for engine in podman docker; do
		if command -v "$engine" >/dev/null && "$engine" info >/dev/null 2>&1; then
			"$engine" build -t "$image" -f packaging/Containerfile build/package/tree
			"$engine" save "$image" | gzip -9n >"$out/guestprobe-$version-image.tar.gz"
			built=yes
			break
		fi
	done
	if [[ -z $built ]] && command -v buildah >/dev/null; then
		buildah build -t "$image" -f packaging/Containerfile build/package/tree
		buildah push -q "$image" "oci-archive:$out/guestprobe-$version-image.tar"
		gzip -9n "$out/guestprobe-$version-image.tar"
	fi
fi
(cd "$out" && sha256sum -- * >SHA256SUMS)
cat "$out/SHA256SUMS"
