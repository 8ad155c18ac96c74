#!/usr/bin/env bash
# Makes a record for docs/hosts of what doctor printed as JSON (standard
# input), the host's kernel release, its KVM module, and the emulator it runs
# on, "" for none. Usage: record.sh KERNEL MODULE EMULATOR <DOCTOR
set -euo pipefail
printf '{\n  "date": "%s",\n  "kernel": "%s",\n  "module": "%s",\n  "emulator": "%s",\n  "doctor": ' "$(date -u +%F)" "$1" "$2" "$3"
sed '2,$s/^/  /'
echo "}"
