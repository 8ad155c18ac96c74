#!/usr/bin/env bash
# Measures what probes of a Linux guest cost, and prints a part of docs/benchmarks.md, which
# is kept as build/bench-linux.md: attaching all functions at once, under this machine's
# /dev/kvm to a guest that need not run; hits in the machines that QEMU and Bochs emulate,
# where instructions are counted. With --docs it is written there, too; with --kept the
# emulated machines are not run again: what is there of them stays.
# GUESTPROBE_KERNELS has the kernels, as for nested.sh (default: one).
set -euo pipefail
cd "$(dirname "$0")/.."
out=build/bench-linux.md options=" $* "
read -ra kernels <<<"${GUESTPROBE_KERNELS:-}"
mkdir -p build
go build -buildvcs=auto -trimpath -o bin/ ./cmd/...
tmp=$(mktemp -d)
daemon=
# shellcheck disable=SC2317 # a trap calls it
stop() {
	[[ -z $daemon ]] || { kill "$daemon" && wait "$daemon"; } 2>/dev/null || true
	rm -rf "$tmp"
}
trap stop EXIT
export GUESTPROBE_SOCKET=$tmp/s
# memory NAME: a line of the daemon's status, in MB.
memory() { echo $(($(sed -n "s/^$1:[^0-9]*\([0-9]*\) kB/\1/p" "/proc/$daemon/status") / 1024)); }
# cpu: tenths of seconds of processor time that the daemon has taken (proc(5), fields 14 and 15).
cpu() {
	local field
	read -ra field <"/proc/$daemon/stat"
	echo $(((field[13] + field[14]) * 10 / $(getconf CLK_TCK)))
}
# attach GUEST: every function that may be probed, in one batch.
attach() {
	mkfifo "$tmp/ready"
	bin/guestprobed --kernel "$1/vmlinuz" --initrd "$1/initrd" --paused --slowly --log-level warn --ready-fd 3 3>"$tmp/ready" &
	daemon=$!
	read -r _ <"$tmp/ready" || {
		echo "| $(basename "$1") | not to be had: this machine has no usable /dev/kvm | - | - | - | - | - |"
		return
	}
	local before start took probes used
	used=$(cpu)
	before=$(memory VmRSS)
	echo 5 >"/proc/$daemon/clear_refs" # VmHWM begins anew (proc(5))
	start=$(date +%s%N)
	bin/guestprobe attach 'p:all/* *' >/dev/null 2>&1
	took=$((($(date +%s%N) - start) / 100000000)) used=$(($(cpu) - used))
	sleep 5 # it gives memory back behind its answer
	local behind
	behind=$(($(memory VmRSS) - before))
	probes=$(bin/guestprobe list --no-headers | wc -l)
	echo "| $(basename "$1") | $probes | $((took / 10)).$((took % 10)) | $((used / 10)).$((used % 10)) | $before | $behind | $(($(memory VmHWM) - before)) |"
	kill "$daemon"
	wait "$daemon" || true
	daemon=
	rm "$tmp/ready"
}
# hits HOST WHAT: the table of a nested host.
hits() {
	GUESTPROBE_NESTED_COUNTED=1 scripts/nested.sh "$1" cost >&2
	local log=build/nested/$1-cost/console.log
	printf '\nOn %s, guest %s. An instruction of a loop takes %s ticks of its clock.\n\n' "$2" \
		"$(tr -d '\r' <"$log" | sed -n 's/^GP-COST-OF \([^ ]*\) .*/\1/p' | paste -sd, | sed 's/,/, /g')" \
		"$(tr -d '\r' <"$log" | sed -n 's/^GP-COST-OF [^ ]* //p' | paste -sd, | sed 's/,/, /g')"
	echo '| | instructions, of the guest and of the host in it (lowest to highest) | of them outside of KVM_RUN | exits | ratio |'
	echo '|---|---|---|---|---|'
	tr -d '\r' <"$log" | sed -n 's/^GP-COST |/|/p'
}
on="on $(date -u +%F) of commit $(git rev-parse --short=12 HEAD)"
scripts/linux/guests.sh "$tmp/linux" "${kernels[@]}"
(
	cat <<-EOF
		## Linux guests

		Written by \`scripts/bench-linux.sh\`, which is \`make bench-linux\`. Machine: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores, Linux $(uname -r).

		\`guestprobe attach 'p:all/* *'\`, $on: each function that may be probed, in one batch, at the first instruction of a guest that is paused. Memory is the daemon's resident set, of which the guest's is a part.

		| kernel | probes | seconds | of processor time, of the daemon | MB before | MB more after it | MB more during it |
		|---|---|---|---|---|---|---|
	EOF
	for guest in "$tmp"/linux/*/; do attach "${guest%/}"; done
	echo
	if [[ $options == *--kept* ]]; then
		sed -n '/^What a probe adds to a call of/,$p' docs/benchmarks.md
		exit
	fi
	cat <<-EOF
		What a probe adds to a call of \`getppid\`, $on, by \`TestLinuxCost\`: a program in the guest calls it a thousand times, five times over, and reads its time stamp counter, which counts
		instructions on these hosts. *ratio* compares with the row above of the guest's own kernel: int3 to its kprobe by int3, a jump to its optimized kprobe, one at the entry to its
		kprobe by ftrace, returns to its kretprobe. The rows of \`openat\` are by \`TestLoadsCost\` and \`TestStacksCost\`, in nanoseconds of the guest's clock, which are instructions here; their
		*ratio* compares with the cheaper BPF program. The kernel's write an event for each hit; probes of guestprobe do so in the rows whose events are read. A boot with probes
		has in it that all of the kernel's text is looked at once, by the daemon. Under kvm_amd in QEMU int3s go to the guest's own vector, where the host takes them all, including the int3s of the
		kernel's own kprobes.
	EOF
	hits svm "kvm_amd of Linux 6.1 in QEMU (\`-icount shift=0\`)"
	hits vmx "kvm_intel of Linux 6.1 in Bochs"
) >"$tmp/part"
mv "$tmp/part" "$out"
cat "$out"
if [[ $options == *--docs* ]]; then
	sed '/^## Linux guests$/,$d' docs/benchmarks.md | cat - "$out" >"$tmp/all"
	cp "$tmp/all" docs/benchmarks.md
fi
