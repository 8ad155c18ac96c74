#!/usr/bin/env bash
# Holds our reading of the kernel's optimization rules against a running kernel:
# boots it in QEMU (no KVM needed), puts a kprobe on every byte of about a hundred
# functions, a few at a time, and compares what the kernel optimized with what
# probe/flow says of the same text. Takes about four minutes.
# Usage: linux-rules.sh [VMLINUZ]   (without one: the kernel of the nested hosts)
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/packages.sh svm
kernel=${1:-}
[[ -n $kernel ]] || kernel=$(ls "$(scripts/linux/kernel.sh)"/boot/vmlinuz-* | head -n 1)

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cp "$kernel" "$dir/vmlinuz"
export LINUX_RULES=$dir
go test -tags linuxrules -count 1 -run 'TestLinuxPick$' ./internal/analyze
read -r at size <"$dir/text.at"

# Probes 20 bytes apart do not stand in each other's region.
cat >"$dir/rules.sh" <<'EOT'
cd /sys/kernel/tracing
echo READY
read go
round=0
while [ $round -lt 20 ]; do
	n=0
	while read f size; do
		off=$round
		while [ $off -lt $size ]; do
			n=$((n + 1))
			echo "p:rules/e$n $f+$off" >>kprobe_events 2>/dev/null
			off=$((off + 20))
		done
	done </functions
	echo 1 >events/rules/enable
	sleep 1
	sed "s/^/L /" /sys/kernel/debug/kprobes/list
	echo 0 >events/rules/enable
	echo >kprobe_events
	round=$((round + 1))
done
echo DONE
EOT
scripts/linux/initrd.sh "$dir/initrd" --file "$dir/functions" --file "$dir/rules.sh"

# said WORD: waits until the kernel's console has it.
said() {
	for _ in $(seq 900); do
		grep -q "^$1" "$dir/serial" 2>/dev/null && return
		sleep 1
	done
	return 1
}
# saved: waits until the text is in its file.
saved() {
	for _ in $(seq 60); do
		[[ $(stat -c %s "$dir/text" 2>/dev/null || echo 0) -ge $((size)) ]] && return
		sleep 1
	done
	return 1
}
mkfifo "$dir/tty.in" "$dir/tty.out"
cat "$dir/tty.out" >"$dir/serial" &
reader=$!
{
	said READY
	echo "pmemsave $at $size \"$dir/text\""
	saved
	echo go >"$dir/tty.in"
	said DONE # and it switches itself off
} | timeout 1200 qemu-system-x86_64 -accel tcg -cpu max -m 1024 -display none -no-reboot -monitor stdio \
	-serial pipe:"$dir/tty" -kernel "$dir/vmlinuz" -initrd "$dir/initrd" \
	-append "console=ttyS0 nokaslr panic=-1 quiet -- sh /rules.sh" >"$dir/monitor"
kill "$reader" 2>/dev/null || true
grep -q '^DONE' "$dir/serial" || { tail -n 20 "$dir/serial" >&2; echo "linux-rules: the kernel did not come to an end" >&2; exit 1; }
go test -tags linuxrules -count 1 -v -run 'TestLinuxRules$' ./internal/analyze
