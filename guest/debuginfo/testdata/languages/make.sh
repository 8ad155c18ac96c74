#!/usr/bin/env bash
# Builds programs of C++ and Rust, and packs them: make.sh languages.tar.gz. Needs g++, clang, lld and rustc.
set -euo pipefail
src=$(cd "$(dirname "$0")" && pwd)
to=$(realpath "${1:?usage: make.sh FILE}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
flags=(-std=c++17 -O2 -g -ffreestanding -fno-pie -fno-exceptions -fno-rtti -fcf-protection=none -fno-stack-protector -fno-asynchronous-unwind-tables
	-fno-threadsafe-statics -w -fdebug-prefix-map="$src=/src" -fdebug-prefix-map="$work=/build")
link=(-nostdlib -static -no-pie -Wl,-Ttext=0x401000 -Wl,--unresolved-symbols=ignore-all -Wl,--build-id=none)
g++ "${flags[@]}" "${link[@]}" -gdwarf-5 "$src/lang.cc" -o gcc5
g++ "${flags[@]}" "${link[@]}" -gdwarf-4 -fdebug-types-section "$src/lang.cc" -o gcctypes4
clang++ "${flags[@]}" "${link[@]}" -gdwarf-5 -fuse-ld=lld "$src/lang.cc" -o clang5
clang++ "${flags[@]}" "${link[@]}" -gdwarf-4 -fdebug-types-section -fuse-ld=lld "$src/lang.cc" -o clangtypes4
for level in 0 2; do
	rustc --edition 2021 -g -C panic=abort -C opt-level=$level -C overflow-checks=off -C relocation-model=static -C force-unwind-tables=no --crate-type bin --crate-name lang \
		--remap-path-prefix="$src=/src" --remap-path-prefix="$work=/build" -C link-arg=-nostartfiles -C link-arg=-nostdlib -C link-arg=-static "$src/lang.rs" -o rust$level
done
tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf - * | gzip -n9 >"$to"
