#!/usr/bin/env bash
# Fetches a kernel and busybox by apt, makes an initramfs, boots it and probes it:
# on this machine's /dev/kvm where that runs kernels at speed, else in an emulated
# machine. Usage: demo-linux.sh [KERNEL]   (what scripts/linux/kernel.sh takes)
set -euo pipefail
cd "$(dirname "$0")/.."
cannot=
if doctor=$(bin/guestprobe doctor --format json 2>/dev/null); then
	# The first is that of kernel code.
	[[ $(grep -m1 '"int3"' <<<"$doctor") != *emulation-exit* ]] ||
		cannot="this host's KVM emulates the kernel code of guests, where a Linux boot takes half an hour"
else
	cannot="this machine has no usable /dev/kvm"
fi
if [[ -n $cannot ]]; then
	echo "demo-linux: $cannot: booting in a machine that QEMU emulates, with AMD's SVM (see docs/hosts.md)"
	GUESTPROBE_KERNELS=${1:-} exec scripts/nested.sh svm demo
fi
echo "demo-linux: this host's KVM runs the kernel code of guests: booting under /dev/kvm"
scripts/linux/guests.sh build/linux "${1:-}"
for guest in build/linux/*/; do
	scripts/linux/demo.sh "$guest" bin probe/bpf/testdata/obj
done
