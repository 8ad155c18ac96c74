#!/usr/bin/env bash
# Installs what the nested hosts need, from Debian packages alone, and says
# what it installs. Idempotent: a second call finds all of it and does nothing.
# Usage: packages.sh vmx|svm
set -euo pipefail

common=(cpio busybox-static xz-utils)
case "${1:-}" in
vmx) want=("${common[@]}" bochs bochs-term bochsbios vgabios grub-pc-bin grub-common xorriso mtools bsdutils) ;;
svm) want=("${common[@]}" qemu-system-x86) ;;
*) echo "usage: $0 vmx|svm" >&2; exit 2 ;;
esac

missing=()
for p in "${want[@]}"; do
	[[ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null || true)" == installed ]] || missing+=("$p")
done
[[ ${#missing[@]} -gt 0 ]] || exit 0

sudo=()
if [[ $(id -u) != 0 ]]; then
	command -v sudo >/dev/null || {
		echo "nested $1: missing Debian packages: ${missing[*]}; install them as root (apt-get install ${missing[*]}) and try again" >&2
		exit 1
	}
	sudo=(sudo)
fi
command -v apt-get >/dev/null || {
	echo "nested $1: this is no Debian machine (no apt-get); install the equivalents of: ${missing[*]}" >&2
	exit 1
}
echo "nested $1: installing Debian packages: ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install() { DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y -q --no-install-recommends "${missing[@]}" >"$log" 2>&1; }
install || { "${sudo[@]}" apt-get update -q >>"$log" 2>&1 && install; } || {
	tail -n 20 "$log" >&2
	echo "nested $1: apt-get could not install ${missing[*]} (see above): check the network, the package sources and free space (df -h /), then run the same command again" >&2
	exit 1
}
