#!/usr/bin/env bash
# Builds the initrd of a nested host (and, for Bochs, the bootable ISO).
# Usage: image.sh vmx|svm PAYLOAD OUT
#   PAYLOAD  folder with the static binaries and the file "plan" (see init.sh)
#   OUT      folder for kernel, initrd and boot.iso
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
host=$1 payload=$2 out=$3

case $host in
vmx) emulator=bochs modules=kvm-intel ;;
svm) emulator=qemu modules=?ccp,kvm-amd ;; # the cloud kernel has no ccp, and its kvm-amd does without
*) echo "usage: $0 vmx|svm PAYLOAD OUT" >&2; exit 2 ;;
esac
root=$("$here/../linux/kernel.sh")

iso=$(mktemp -d)
trap 'rm -rf "$iso"' EXIT
fail() { echo "nested $host: $out could not be built; check free space (df -h $out $iso), then run the same command again" >&2; exit 1; }
trap fail ERR

mkdir -p "$out"
cp -f "$root"/boot/vmlinuz-* "$out/kernel"
echo "$emulator" >"$iso/emulator"
"$here/../linux/initrd.sh" "$out/initrd" --init "$here/init.sh" --kernel "$root" --modules "$modules" \
	--file "$iso/emulator" --file "$payload:/t"

[[ $host == vmx ]] || exit 0
mkdir -p "$iso/boot/grub"
cp "$out/kernel" "$out/initrd" "$iso/boot/"
cat >"$iso/boot/grub/grub.cfg" <<-EOG
	set timeout=0
	menuentry host {
	  linux /boot/kernel console=ttyS0,115200 mitigations=off nokaslr tsc=reliable lpj=1000000 random.trust_cpu=on panic=-1 quiet
	  initrd /boot/initrd
	}
EOG
grub-mkrescue --quiet -o "$out/boot.iso" "$iso" 2>"$out/grub.log" || {
	cat "$out/grub.log" >&2
	fail
}
