#!/usr/bin/env bash
# Boots a nested host from image.sh's output, streams its console, and ends
# with the exit code that the tests inside ended with. A hang is cut off.
# Usage: run.sh vmx|svm OUT SECONDS
set -euo pipefail
host=$1 out=$2 limit=$3
log=$out/console.log
rm -f "$log"
: >"$log"

case $host in
vmx)
	# Debian's Bochs has only the term display and starts in its debugger:
	# script(1) gives it a terminal, the rc file tells the debugger to go on.
	cat >"$out/bochsrc" <<-EOF
		cpu: model=corei7_haswell_4770, count=1, ips=50000000, reset_on_triple_fault=1
		memory: guest=1024, host=1024
		romimage: file=/usr/share/bochs/BIOS-bochs-latest
		vgaromimage: file=/usr/share/bochs/VGABIOS-lgpl-latest
		ata0-master: type=cdrom, path="$out/boot.iso", status=inserted
		boot: cdrom
		clock: sync=none, time0=local
		com1: enabled=1, mode=file, dev="$log"
		display_library: term
		log: $out/bochs.log
		panic: action=fatal
		error: action=report
		info: action=ignore
		debug: action=ignore
		port_e9_hack: enabled=0
		speaker: enabled=0
	EOF
	echo c >"$out/bochs.dbg"
	cmd=(env TERM=xterm script -qefc "bochs -q -f '$out/bochsrc' -rc '$out/bochs.dbg'" /dev/null)
	;;
svm)
	cmd=(qemu-system-x86_64 -accel tcg,thread=single -cpu "max,+svm,+npt,+nrip-save" -smp 2 -m 1536
		-nodefaults -no-user-config -display none -no-reboot -serial "file:$log"
		-kernel "$out/kernel" -initrd "$out/initrd"
		-append "console=ttyS0,115200 mitigations=off nokaslr random.trust_cpu=on panic=-1 quiet")
	;;
*) echo "usage: $0 vmx|svm OUT SECONDS" >&2; exit 2 ;;
esac

setsid "${cmd[@]}" </dev/null >"$out/emulator.log" 2>&1 &
emulator=$!
tail -n +1 -f --pid="$emulator" "$log" 2>/dev/null &
tailer=$!
stop() {
	# The emulator leads its own session, so one signal reaches all of it.
	kill -TERM -- "-$emulator" 2>/dev/null || true
	for _ in 1 2 3 4 5 6 7 8 9 10; do kill -0 -- "-$emulator" 2>/dev/null || break; sleep 0.2; done
	kill -KILL -- "-$emulator" 2>/dev/null || true
	kill "$tailer" 2>/dev/null || true
}
trap 'stop; exit 130' INT TERM
trap stop EXIT

start=$SECONDS
while kill -0 "$emulator" 2>/dev/null && ! grep -q '^GP-END' "$log"; do
	if ((SECONDS - start > limit)); then
		echo "nested $host: no end after $limit s, cut off; the last 40 console lines:" >&2
		tail -n 40 "$log" >&2
		exit 124
	fi
	sleep 0.5
done
sleep 0.5
rc=$(tr -d '\r' <"$log" | sed -n 's/^GP-END rc=\([0-9]*\).*/\1/p' | tail -n 1)
if [[ -z $rc ]]; then
	echo "nested $host: the machine stopped before its tests ended; console and emulator say:" >&2
	tail -n 40 "$log" "$out/emulator.log" >&2
	exit 125
fi
echo "nested $host: ended with $rc after $((SECONDS - start)) s"
exit "$rc"
