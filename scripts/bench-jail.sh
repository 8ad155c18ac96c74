#!/usr/bin/env bash
# Measures what the jail adds to an exit of a guest, and writes it as a section of docs/benchmarks.md to standard output.
set -euo pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0
exits=$(go test -run '^$' -bench ConfinedExit -benchtime 40x ./internal/server/http | grep -E '^Benchmark')
calls=$(go test -run '^$' -bench Ioctl -count 7 ./internal/server/jail | grep -E '^(cpu|Benchmark)')
cat <<'EOF'

## What the jail adds to an exit

An exit is one ioctl, which the daemon's [seccomp filters](security.md#the-jail) look at. First, exits of real guests in two daemons by turns, one of them with `--no-jail`: int3s, by the vCPU thread's processor time, which has the guest's own time between
two exits in it; and the ratio of a turn's two, with its quarters. Then the system call alone, an ioctl that fails at once: `free`, under the filter of the process, and under that and a vCPU's, by processor time.

EOF
printf 'Machine: %s, %d cores, Linux %s. %s, commit %s.\n\n' "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)" "$(nproc)" "$(uname -r)" "$(date -u +%F)" "$(git rev-parse --short=12 HEAD)"
printf '```\n%s\n%s\n```\n' "$exits" "$calls"
