#!/bin/busybox sh
# shellcheck shell=dash
# A Linux guest of a guestprobed, seen from outside as the guest of another VMM: tasks, symbols, memory and stacks are those
# that its own daemon shows, and the guest runs on. Usage, in a nested host: vms.sh FOLDER, with vmlinuz and initrd.
set -u
kernel=$1/vmlinuz
own() { ./guestprobe -s /tmp/vms.sock "$@"; }
outside() { ./guestprobe --vm "$pid" --vm-image "$kernel" "$@"; }
fail() { echo "vms.sh: $*"; kill "$pid"; wait "$pid"; cat /tmp/vms.log; exit 1; }

./guestprobed --socket /tmp/vms.sock --kernel "$kernel" --initrd "$1/initrd" --append 'console=ttyS0 quiet panic=-1' --memory 256M >/tmp/vms.log 2>&1 &
pid=$!
until own guest console 2>/dev/null | grep -q GP-BOOTED; do
	kill -0 "$pid" || fail "the daemon has ended"
	sleep 1
done

./guestprobe vms >/tmp/vms.out || fail "vms: exit status $?"
cat /tmp/vms.out
own guest status >/tmp/vms.own
read -r _ _ _ _ _ release slide reach <<-LINE
	$(grep "^$pid " /tmp/vms.out)
LINE
[ "$reach" = ptrace ] || fail "reached by '$reach', not by ptrace"
grep -q "Linux $release$" /tmp/vms.own && grep -q "slide  *$slide " /tmp/vms.own || fail "another kernel or slide than its own daemon's"
same() {
	own "$@" | sort >/tmp/vms.own
	outside "$@" | sort >/tmp/vms.out
	[ -s /tmp/vms.own ] && cmp /tmp/vms.own /tmp/vms.out || { cat /tmp/vms.own /tmp/vms.out; fail "$*: not what its own daemon shows"; }
	echo "same: $* ($(wc -l </tmp/vms.own) lines)"
}
same tasks
same symbols 'vfs_*'
same mem linux_banner 128
same bt --task 1
same bt --task 2
outside bt | tee /tmp/vms.out
grep -q '^#1 ' /tmp/vms.out || fail "no stack of a running vCPU"
outside profile -d 1s 2>/dev/null | grep -q '\[k\]$' || fail "no profile"
head -c 1000000 "$kernel" >/tmp/vms.cut
./guestprobe --vm "$pid" --vm-image /tmp/vms.cut tasks && fail "half an image was taken"
outside attach 'p vfs_read' && fail "a probe was attached"
own guest status | grep -q '^state  *running' || fail "the guest does not run"
kill "$pid"
wait "$pid" || fail "the daemon's exit status is $?"
echo "vms.sh: done"
