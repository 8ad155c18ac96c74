#!/usr/bin/env bash
# Makes the packages of the kinds that are named, of what 'make install' installs, in build/package. The same commit gives the
# same bytes, on any day and in any folder.
#   package.sh deb|rpm...
#   VERSION  of the packages (default: of the last tag, and how far this commit is behind it)
set -euo pipefail
cd "$(dirname "$0")/.."
# Pinned here, and not in go.mod: nothing of the programs needs it.
nfpm=github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.43.4
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
VERSION=${VERSION:-$(scripts/version.sh)}
TREE=build/package/tree
MTIME=$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
export VERSION TREE MTIME
rm -rf "$TREE"
make install DESTDIR="$TREE" PREFIX=/usr VERSION="$VERSION" >/dev/null
# What Debian's policy wants of each package (12.5, 12.7): nfpm.yaml puts it into the package of Debian alone.
DEBIAN=build/package/debian
rm -rf "$DEBIAN"
install -D -m 644 -t "$DEBIAN" packaging/copyright packaging/lintian-overrides
{
	printf 'guestprobe (%s) unstable; urgency=medium\n\n' "$VERSION"
	printf '  * Changes are in CHANGELOG.md, in this folder.\n\n'
	printf ' -- The guestprobe authors <guestprobe@users.noreply.github.com>  %s\n' "$(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")"
} | gzip -9n >"$DEBIAN/changelog.gz"
find "$TREE" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
envsubst() { sed -e "s|\${VERSION}|$VERSION|g" -e "s|\${TREE}|$TREE|g" -e "s|\${DEBIAN}|$DEBIAN|g" -e "s|\${MTIME}|$MTIME|g"; }
# Whole files only: an interrupted build leaves no part of one.
new=$(mktemp -d build/package/new.XXXXXX)
trap 'rm -rf "$new"' EXIT
for kind; do
	envsubst <packaging/nfpm.yaml >build/package/nfpm.yaml
	# Debian's control file has no field for the license, which is in the file copyright.
	if [[ $kind == deb ]]; then sed -i '/^license:/d' build/package/nfpm.yaml; fi
	GOFLAGS=-mod=mod go run "$nfpm" package --config build/package/nfpm.yaml --packager "$kind" --target "$new/"
	mv -f "$new"/*."$kind" build/package/
done
