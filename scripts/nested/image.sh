#!/usr/bin/env bash
# Builds the initrd of a nested host (and, for Bochs, the bootable ISO).
# Usage: image.sh vmx|svm PAYLOAD OUT
#   PAYLOAD  folder with the static binaries and the file "plan" (see init.sh)
#   OUT      folder for kernel, initrd and boot.iso
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
host=$1 payload=$2 out=$3

root=$("$here/kernel.sh")
case $host in
vmx) emulator=bochs modules=(irqbypass kvm kvm-intel) ;;
svm) emulator=qemu modules=(irqbypass ccp kvm kvm-amd) ;;
*) echo "usage: $0 vmx|svm PAYLOAD OUT" >&2; exit 2 ;;
esac

tree=$(mktemp -d)
iso=$(mktemp -d)
trap 'rm -rf "$tree" "$iso"' EXIT
fail() { echo "nested $host: $out could not be built; check free space (df -h $out $tree), then run the same command again" >&2; exit 1; }
trap fail ERR

mkdir -p "$tree"/{bin,lib,dev,proc,sys,tmp,t,etc} "$out"
echo "root:x:0:0:root:/tmp:/bin/sh" >"$tree/etc/passwd"
cp "$(command -v busybox)" "$tree/bin/busybox"
: >"$tree/modules"
for m in "${modules[@]}"; do
	# The cloud kernel has no ccp, and its kvm-amd does without.
	file=$(find "$root/lib/modules" -name "$m.ko*" | head -n 1)
	case $file in
	*.ko) cp "$file" "$tree/lib/$m.ko" ;;
	*.ko.xz) xz -dc "$file" >"$tree/lib/$m.ko" ;;
	*.ko.zst) zstd -qdc "$file" >"$tree/lib/$m.ko" ;;
	*) continue ;;
	esac
	echo "$m.ko" >>"$tree/modules"
done
echo "$emulator" >"$tree/emulator"
cp "$here/init.sh" "$tree/init"
chmod 755 "$tree/init"
cp -r "$payload"/. "$tree/t/"
mv "$tree/t/plan" "$tree/plan"
cp -f "$root"/boot/vmlinuz-* "$out/kernel"
(cd "$tree" && find . -print0 | cpio --null --quiet -H newc -o -R 0:0) | gzip -1 >"$out/initrd"

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
