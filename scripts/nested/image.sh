#!/usr/bin/env bash
# Builds the initrd of a nested host (and, for Bochs, the bootable ISO).
# Usage: image.sh vmx|svm PAYLOAD OUT
#   PAYLOAD  folder with the static binaries and the file "plan" (see init.sh)
#   OUT      folder for kernel, initrd and boot.iso
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
host=$1 payload=$2 out=$3

root=$("$here/kernel.sh")
kernel=$(echo "$root"/boot/vmlinuz-*)
mods=$(echo "$root"/lib/modules/*/kernel)
case $host in
vmx) emulator=bochs modules=(virt/lib/irqbypass.ko arch/x86/kvm/kvm.ko arch/x86/kvm/kvm-intel.ko) ;;
svm) emulator=qemu modules=(virt/lib/irqbypass.ko arch/x86/kvm/kvm.ko arch/x86/kvm/kvm-amd.ko) ;;
esac

tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
mkdir -p "$tree"/{bin,lib,dev,proc,sys,tmp,t,etc} "$out"
echo "root:x:0:0:root:/tmp:/bin/sh" >"$tree/etc/passwd"
cp "$(command -v busybox)" "$tree/bin/busybox"
for m in "${modules[@]}"; do
	cp "$mods/$m" "$tree/lib/"
	basename "$m" >>"$tree/modules"
done
echo "$emulator" >"$tree/emulator"
cp "$here/init.sh" "$tree/init"
chmod 755 "$tree/init"
cp -r "$payload"/. "$tree/t/"
mv "$tree/t/plan" "$tree/plan"
cp -f "$kernel" "$out/kernel"
(cd "$tree" && find . -print0 | cpio --null --quiet -H newc -o -R 0:0) | gzip -1 >"$out/initrd"

[[ $host == vmx ]] || exit 0
iso=$(mktemp -d)
trap 'rm -rf "$tree" "$iso"' EXIT
mkdir -p "$iso/boot/grub"
cp "$out/kernel" "$out/initrd" "$iso/boot/"
cat >"$iso/boot/grub/grub.cfg" <<-EOF
	set timeout=0
	menuentry host {
	  linux /boot/kernel console=ttyS0,115200 mitigations=off nokaslr tsc=reliable lpj=1000000 random.trust_cpu=on panic=-1 quiet
	  initrd /boot/initrd
	}
EOF
grub-mkrescue --quiet -o "$out/boot.iso" "$iso" 2>"$out/grub.log" || {
	cat "$out/grub.log" >&2
	echo "nested vmx: grub-mkrescue could not make $out/boot.iso; check free space (df -h)" >&2
	exit 1
}
