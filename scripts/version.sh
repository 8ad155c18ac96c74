#!/usr/bin/env bash
# Prints the version of this commit as packages have it: 1.2.3 at the tag v1.2.3, 1.2.3+5.gabcdef0 five commits behind it.
set -euo pipefail
cd "$(dirname "$0")/.."
described=$(git describe --tags --match 'v[0-9]*' --long --abbrev=12 2>/dev/null || echo "v0.0.0-$(git rev-list --count HEAD)-g$(git rev-parse --short=12 HEAD)")
tag=${described%-*-*} rest=${described#"${described%-*-*}"-}
[[ $rest == 0-* ]] && echo "${tag#v}" || echo "${tag#v}+${rest/-/.}"
