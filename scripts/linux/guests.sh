#!/usr/bin/env bash
# Makes a folder of Linux guests for tests and demos, RELEASE/vmlinuz and
# RELEASE/initrd of each kernel, and RELEASE/System.map where the kernel's folder has one.
# GUESTPROBE_DEBUG names a file of the kernel's debug information, which goes to
# RELEASE/debug; one of a few units does for the tests.
# Usage: guests.sh [--suites] [--tools] OUT [KERNEL...]
#   --suites also RELEASE/suites, the kernel's own (suites.sh)
#   --tools  also tools, the programs of bcc's libbpf-tools as the distribution packages
#            them; tests take the objects for bpf out of these, and do not run them
#   KERNEL  what kernel.sh takes, or the folder of an unpacked kernel, or "tiny"
#           (tinykernel.sh); without any: what kernel.sh takes for none
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
suites='' tools=''
while [[ ${1:-} == --* ]]; do
	case $1 in
	--suites) suites=1 ;;
	--tools) tools=1 ;;
	*) echo "guests: no option $1" >&2; exit 2 ;;
	esac
	shift
done
out=${1:?usage: guests.sh [--suites] [--tools] OUT [KERNEL...]}
shift
"$here/../packages.sh" guests
(($# > 0)) || set -- ""
rm -rf "$out"
if [[ -n $tools ]]; then
	"$here/../packages.sh" tools
	mkdir -p "$out/tools"
	# One folder of the package has all of them, and names of one tool for several.
	dpkg -L libbpf-tools | while read -r file; do
		[[ ! -f $file || -L $file || $file != */sbin/* ]] || cp "$file" "$out/tools/"
	done
fi
for kernel; do
	case $kernel in
	tiny) folder=$("$here/tinykernel.sh") ;;
	/*) folder=$kernel ;;
	*) folder=$("$here/kernel.sh" "$kernel") ;;
	esac
	for image in "$folder"/boot/vmlinuz-*; do
		[[ -s $image ]] || { echo "guests: $folder has no boot/vmlinuz-*" >&2; exit 1; }
		release=${image##*/vmlinuz-}
		mkdir -p "$out/$release"
		cp "$image" "$out/$release/vmlinuz"
		# Debian's own says only that it is elsewhere.
		map=$folder/boot/System.map-$release
		[[ ! -s $map || $(stat -c %s "$map") -lt 1000 ]] || cp "$map" "$out/$release/System.map"
		[[ -z $suites ]] || cp -r "$("$here/suites.sh" "$release")" "$out/$release/suites"
		[[ -z ${GUESTPROBE_DEBUG:-} ]] || cp "$GUESTPROBE_DEBUG" "$out/$release/debug"
		"$here/initrd.sh" "$out/$release/initrd" --kernel "$folder" \
			--modules '?virtio_mmio,?virtio_blk,?virtio_console,?virtio_rng,?crc32c_generic,?ext4' --carry '?dummy,?loop'
	done
done
