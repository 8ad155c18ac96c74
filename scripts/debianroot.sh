#!/usr/bin/env bash
# Makes a new Debian root in a folder that is not there yet, with what debootstrap calls minbase and these packages.
#   debianroot.sh FOLDER [PACKAGE...]
#   GUESTPROBE_SUITE    Debian's suite (default bookworm)
#   GUESTPROBE_MIRROR   where its packages are (default http://deb.debian.org/debian)
set -euo pipefail
root=$1
shift
command -v debootstrap >/dev/null || apt-get install -y -q --no-install-recommends debootstrap >/dev/null
log=$(mktemp)
trap 'rm -f "$log"' EXIT
include=$(IFS=,; echo "$*")
debootstrap --variant=minbase ${include:+--include="$include"} "${GUESTPROBE_SUITE:-bookworm}" "$root" \
	"${GUESTPROBE_MIRROR:-http://deb.debian.org/debian}" >"$log" 2>&1 || { tail "$log"; echo "debootstrap has failed" >&2; exit 1; }
