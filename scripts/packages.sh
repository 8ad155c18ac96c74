#!/usr/bin/env bash
# Installs what the scripts need, from Debian packages alone, and says what it
# installs. Idempotent: a second call finds all of it and does nothing.
# Usage: packages.sh vmx|svm|guests|tiny|tools|oracles
#   vmx, svm  a nested host       guests  kernels and initrds of Linux guests
#   tiny      building a kernel (linux/tinykernel.sh)
#   tools     bcc's libbpf-tools, whose programs tests load
#   oracles   what tests on this machine compare with
set -euo pipefail

common=(cpio busybox-static xz-utils zstd util-linux)
what=${1:-}
case $what in
vmx) want=("${common[@]}" bochs bochs-term bochsbios vgabios grub-pc-bin grub-common xorriso mtools bsdutils) ;;
svm) want=("${common[@]}" qemu-system-x86) ;;
guests) want=("${common[@]}") ;;
tools) want=(libbpf-tools) ;;
oracles) want=(qemu-system-x86 gdb lldb binutils chromium prometheus tmux trace-cmd) ;;
tiny) want=(gcc make libc6-dev bison flex bc perl libelf-dev xz-utils bzip2 lz4 lzop zstd) ;;
*) echo "usage: $0 vmx|svm|guests|tiny|tools|oracles" >&2; exit 2 ;;
esac
fail() { echo "packages for $what: $*" >&2; exit 1; }

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
	fail "this is no Debian machine (no apt-get); needed are the Debian packages ${want[*]}"
fi
# missing PACKAGE...: those that are not installed.
missing() {
	local p
	for p; do
		[[ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null || true)" == installed ]] || echo "$p"
	done
}
mapfile -t need < <(missing "${want[@]}")
[[ ${#need[@]} -gt 0 ]] || exit 0

sudo=()
if [[ $(id -u) != 0 ]]; then
	command -v sudo >/dev/null || fail "missing Debian packages: ${need[*]}; install them as root (apt-get install ${need[*]}) and try again"
	sudo=(sudo)
fi
echo "packages for $what: installing ${need[*]}" >&2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# Another apt may be at work: wait for it. No service that comes with a package is started (RUNLEVEL, invoke-rc.d(8)).
apt() { "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get -q -o DPkg::Lock::Timeout=300 "$@" </dev/null >>"$log" 2>&1; }
install() { apt install -y --no-install-recommends "${need[@]}"; }
# The second try is for package lists that are old or not there, and for what an
# interrupted first one has left.
install || { "${sudo[@]}" dpkg --configure -a >>"$log" 2>&1; apt update; install; } || {
	tail -n 20 "$log" >&2
	fail "apt-get could not install ${need[*]} (see above); check the network, the package sources and free space (df -h / /var), then run the same command again"
}
mapfile -t need < <(missing "${want[@]}")
[[ ${#need[@]} -eq 0 ]] || fail "apt-get has not installed ${need[*]}"
