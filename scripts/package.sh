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
find "$TREE" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
envsubst() { sed -e "s|\${VERSION}|$VERSION|g" -e "s|\${TREE}|$TREE|g" -e "s|\${MTIME}|$MTIME|g"; }
envsubst <packaging/nfpm.yaml >build/package/nfpm.yaml
for kind; do
	GOFLAGS=-mod=mod go run "$nfpm" package --config build/package/nfpm.yaml --packager "$kind" --target build/package/
done
