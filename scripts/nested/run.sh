#!/usr/bin/env bash
# Boots a nested host from image.sh's output, streams its console, and ends
# with the exit code that the tests inside ended with. A machine that hangs, or
# is not done in time, is cut off with the tail of its console. Whatever ends
# this script ends the emulator.
# Usage: run.sh vmx|svm OUT SECONDS
# Exit status: the tests'; 124 cut off; 125 the machine stopped early; 126 the
# emulator does not run; 130 interrupted.
set -euo pipefail
host=$1 out=$2 limit=$3
hang=${GUESTPROBE_NESTED_HANG:-400} # seconds without a sign of life
log=$out/console.log beat=$out/beat.log
rm -f "$log" "$beat"
: >"$log"
: >"$beat"

# The emulator leads its own session, so that a signal reaches all of it and a
# Ctrl-C here does not; it dies with this script, and by itself if all else
# fails.
guard=(setsid setpriv --pdeathsig TERM timeout -k 5 $((limit + 60)))
case $host in
vmx)
	# Time is counted in instructions: ips is how many make a second. So many that
	# timers, of the host and of its guests, are as rare as on a processor; with
	# fewer, a guest with probes on all of its timer handler does nothing else. Idle
	# time costs nothing.
	# Debian's Bochs has only the term display and starts in its debugger:
	# script(1) gives it a terminal, the rc file tells the debugger to go on. The
	# screen it opens is a second pseudo-terminal: see watch_screen.
	cat >"$out/bochsrc" <<-EOB
		cpu: model=corei7_haswell_4770, count=1, ips=400000000, reset_on_triple_fault=1
		memory: guest=1536, host=1536
		romimage: file=/usr/share/bochs/BIOS-bochs-latest
		vgaromimage: file=/usr/share/bochs/VGABIOS-lgpl-latest
		ata0-master: type=cdrom, path="$out/boot.iso", status=inserted
		boot: cdrom
		clock: sync=none, time0=local
		com1: enabled=1, mode=file, dev="$log"
		com2: enabled=1, mode=file, dev="$beat"
		display_library: term
		log: /dev/null
		panic: action=fatal
		error: action=ignore
		info: action=ignore
		debug: action=ignore
		port_e9_hack: enabled=0
		speaker: enabled=0
	EOB
	echo c >"$out/bochs.dbg"
	cmd=(env TERM=xterm script -qefc "exec bochs -q -f '$out/bochsrc' -rc '$out/bochs.dbg'" /dev/null)
	;;
svm)
	# Several CPUs on one thread: see docs/hosts.md for what goes wrong otherwise.
	# One CPU has a thread of its own, because a Linux guest may hang where the
	# CPU shares QEMU's.
	cpus=${GUESTPROBE_NESTED_CPUS:-2} thread=single
	((cpus > 1)) || thread=multi
	# QEMU loses an interrupt now and then where it comes while the CPU enters or leaves a
	# guest (svm_helper.c writes interrupt_request without the lock). If that was the timer's,
	# and the machine is idle, nothing ever wakes it. A byte on the second serial port each
	# second does: with any interrupt the APIC delivers those that are pending.
	rm -f "$out"/kick.*
	mkfifo "$out/kick.in" "$out/kick.out"
	exec 7<>"$out/kick.in" 8<>"$out/kick.out"
	setpriv --pdeathsig TERM cat <&8 >"$beat" 7>&- &
	reader=$!
	# With -icount an instruction is a nanosecond, and a tick of the time stamp counter;
	# it wants one thread for all, where no guest has hung that way.
	count=()
	if [[ -n ${GUESTPROBE_NESTED_COUNTED:-} ]]; then
		cpus=1 thread=single count=(-icount "shift=0,sleep=off")
	fi
	cmd=(qemu-system-x86_64 -accel "tcg,thread=$thread" "${count[@]}" -cpu "max,+svm,+npt,+nrip-save" -smp "$cpus" -m 3072
		-nodefaults -no-user-config -display none -no-reboot -serial "file:$log"
		-chardev "pipe,id=beat,path=$out/kick" -serial chardev:beat
		-kernel "$out/kernel" -initrd "$out/initrd"
		-append "console=ttyS0,115200 mitigations=off nokaslr no_timer_check random.trust_cpu=on panic=-1 quiet")
	;;
*) echo "usage: $0 vmx|svm OUT SECONDS" >&2; exit 2 ;;
esac

"${guard[@]}" "${cmd[@]}" </dev/null >"$out/emulator.log" 2>&1 7>&- 8>&- &
emulator=$!
tail -n +1 -f --pid="$emulator" "$log" 2>/dev/null 7>&- 8>&- &
tailer=$!

# shellcheck disable=SC2317 # traps call it
stop() {
	trap '' INT TERM HUP
	kill -TERM -- "-$emulator" 2>/dev/null || kill -TERM "$emulator" 2>/dev/null || true
	for _ in {1..25}; do kill -0 -- "-$emulator" 2>/dev/null || break; sleep 0.2; done
	kill -KILL -- "-$emulator" 2>/dev/null || true
	kill "$tailer" ${reader:+"$reader"} 2>/dev/null || true
}
trap 'echo "nested $host: interrupted" >&2; exit 130' INT TERM HUP
trap stop EXIT

# watch_screen reads what Bochs draws on the pseudo-terminal of its screen, and
# throws it away: after about 21 KB that nobody has read, the emulator would wait
# for ever in write(2). Raw, so that no line is waited for and nothing goes back as
# key strokes.
screen=
watch_screen() {
	screen=$(sed -n 's|.*Bochs connected to screen "\(/dev/[^"]*\)".*|\1|p' "$out/emulator.log")
	[[ -n $screen ]] || return 0
	{ stty raw -echo && exec cat; } <"$screen" >/dev/null 2>&1 &
}

cut_off() {
	sleep 0.5 # for what tail is still to print
	echo "nested $host: $1; the last 40 lines of the console:" >&2
	tail -n 40 "$log" >&2
	exit 124
}
start=$SECONDS alive=$SECONDS kicked=$SECONDS size=0
while kill -0 "$emulator" 2>/dev/null && ! grep -q '^GP-END' "$log"; do
	[[ $host != vmx || -n $screen ]] || watch_screen
	[[ $host != svm || $((SECONDS - kicked)) -lt 1 ]] || { printf . >&7; kicked=$SECONDS; }
	now=$(stat -c %s "$log" "$beat" | paste -sd+)
	if [[ $now != "$size" ]]; then
		size=$now alive=$SECONDS
	fi
	((SECONDS - start <= limit)) || cut_off "no end after $limit s, cut off"
	((SECONDS - alive <= hang)) || cut_off "no sign of life for $hang s, cut off"
	# In the background, because bash runs a trap only between commands.
	sleep 0.5 &
	wait $! || true
done
sleep 0.5
rc=$(tr -d '\r' <"$log" | sed -n 's/^GP-END rc=\([0-9]*\).*/\1/p' | tail -n 1)
if [[ -z $rc ]]; then
	if [[ ! -s $log ]]; then
		echo "nested $host: the emulator does not run:" >&2
		tail -n 40 "$out/emulator.log" >&2
		exit 126
	fi
	echo "nested $host: the machine stopped before its tests ended; console and emulator say:" >&2
	tail -n 40 "$log" "$out/emulator.log" >&2
	exit 125
fi
echo "nested $host: ended with $rc after $((SECONDS - start)) s"
exit "$rc"
