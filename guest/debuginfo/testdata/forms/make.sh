#!/usr/bin/env bash
# Builds one program with its debug information in all forms, and packs them: make.sh forms.tar.gz.
# Needs gcc, clang, lld, llvm, dwz and binutils.
set -euo pipefail
src=$(cd "$(dirname "$0")" && pwd)
to=$(realpath "${1:?usage: make.sh FILE}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
flags=(-O2 -g -ffreestanding -fno-pie -fcf-protection=none -fno-stack-protector -fno-asynchronous-unwind-tables)
link=(-static -no-pie -nostdlib -Wl,--build-id=sha1 -Wl,-Ttext=0x400000)
# mk NAME FLAG...: a program in a folder of its own, with what belongs to it.
mk() {
	local name=$1 cc=${CC:-gcc}
	shift
	mkdir "$name"
	(
		cd "$name"
		for s in a b; do
			"$cc" "${flags[@]}" -fdebug-prefix-map="$PWD=/build" -fdebug-prefix-map="$src=/src" "$@" -c "$src/$s.c" -o "$s.o"
		done
		"$cc" "${flags[@]}" "${link[@]}" "$@" ${LD:+-fuse-ld=$LD} -o prog a.o b.o
	)
}
# pack NAME FROM DWP: split information as a package.
pack() {
	cp -r "$2" "$1"
	(cd "$1" && "$3" -o prog.dwp a.dwo b.dwo && rm a.dwo b.dwo)
}
# from NAME FROM COMMAND...: another form of a program, whose file ends the command.
from() {
	mkdir "$1"
	cp "$2/prog" "$1/prog"
	(cd "$1" && "${@:3}" prog)
}
# multi NAME FROM FLAG...: two programs that share a file.
multi() {
	mkdir "$1"
	cp "$2/prog" "$1/prog"
	cp "$2/prog" "$1/second"
	(cd "$1" && dwz "${@:3}" -m common prog second && rm second)
}
for v in 4 5; do
	mk gcc$v -gdwarf-$v
	mk lto$v -gdwarf-$v -flto
	mk types$v -gdwarf-$v -fdebug-types-section
	mk split$v -gdwarf-$v -gsplit-dwarf
	mk splittypes$v -gdwarf-$v -gsplit-dwarf -fdebug-types-section
	from dwz$v gcc$v dwz
	multi multi$v gcc$v
	from zdebug$v gcc$v objcopy --compress-debug-sections=zlib-gnu
done
pack package4 split4 dwp
pack gnupackage5 split5 dwp # which does not know DWARF 5, but does not say so
mk gcc2 -gdwarf-2 -gstrict-dwarf
mk gcc3 -gdwarf-3
mk wide5 -gdwarf-5 -gdwarf64
multi sup5 gcc5 --dwarf-5
pack packagetypes4 splittypes4 dwp
from zlib5 gcc5 objcopy --compress-debug-sections=zlib
from zstd5 gcc5 objcopy --compress-debug-sections=zstd
export CC=clang LD=lld
mk clang4 -gdwarf-4
mk clang5 -gdwarf-5
mk clanglto5 -gdwarf-5 -flto
mk clangtypes5 -gdwarf-5 -fdebug-types-section
mk clangsplit4 -gdwarf-4 -gsplit-dwarf
mk clangsplit5 -gdwarf-5 -gsplit-dwarf
pack clangpackage5 clangsplit5 llvm-dwp
find . -name '*.o' -delete
tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf - * | gzip -n9 >"$to"
