#!/usr/bin/env bash
# Makes an initrd of busybox for a Linux guest, as any user, and the same bytes
# each time. Its first process is init.sh beside this script, which says what it does.
# Usage: initrd.sh OUT [OPTION...]
#   --kernel DIR        folder of the kernel whose modules are meant (kernel.sh, or
#                       /lib/modules/RELEASE of this machine)
#   --modules A,B,...   load these at boot, and what they need before them
#   --carry A,B,...     have these in /lib/modules, not loaded
#   --file FROM[:TO]    a file or folder, as TO in the guest (default /NAME)
#   --init FILE         another first process
# A module that is built into the kernel is left out; ?A is left out, too, where the
# kernel does not have it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
fail() { echo "initrd: $*" >&2; exit 1; }
out=${1:-} kernel='' init=$here/init.sh
[[ -n $out && $out != -* ]] || fail "usage: initrd.sh OUT [--kernel DIR] [--modules A,B] [--carry A,B] [--file FROM[:TO]] [--init FILE]"
shift
load=() carry=() files=()
while (($# > 0)); do
	(($# > 1)) || fail "$1 needs a value"
	case $1 in
	--kernel) kernel=$2 ;;
	--modules) IFS=, read -ra load <<<"$2" ;;
	--carry) IFS=, read -ra carry <<<"$2" ;;
	--file) files+=("$2") ;;
	--init) init=$2 ;;
	*) fail "no option $1" ;;
	esac
	shift 2
done
[[ -z $kernel || -d $kernel ]] || fail "--kernel $kernel: no such folder; it has the modules of the kernel that is to boot"
((${#load[@]} + ${#carry[@]} == 0)) || [[ -n $kernel ]] || fail "--modules and --carry need --kernel"
busybox=$(command -v busybox) || fail "needs busybox (apt-get install busybox-static)"
command -v cpio >/dev/null || fail "needs cpio (apt-get install cpio)"

tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
mkdir -p "$tree"/{bin,dev,etc,lib/modules,proc,root,sys,tmp}
echo "root:x:0:0:root:/root:/bin/sh" >"$tree/etc/passwd"
cp "$busybox" "$tree/bin/busybox"
! ldd "$busybox" >/dev/null 2>&1 || fail "$busybox is not static (apt-get install busybox-static)"
install -m 755 "$init" "$tree/init"

# module NAME LIST: puts a module and those it needs into the tree, each once, and
# their names into LIST, in the order to load them in.
module() {
	local name=${1//-/_} list=$2 file depends
	name=${name#\?}
	[[ $name =~ ^[A-Za-z0-9_]+$ ]] || fail "$1 is no name of a module"
	! grep -qxF "$name" "$list" || return 0
	file=$(find "$kernel/" -regex ".*/${name//_/[-_]}\.ko\(\.xz\|\.zst\|\.gz\)?" 2>/dev/null | head -n 1)
	if [[ -z $file ]]; then
		[[ $1 == \?* || -n $(find "$kernel/" -name modules.builtin -exec grep "/${name//_/[-_]}\.ko\$" {} +) ]] ||
			fail "the kernel of $kernel has no module $name, and has it not built in; ?$name is one that may be missing"
		return 0
	fi
	local to=$tree/lib/modules/$name.ko
	case $file in
	*.ko) cp "$file" "$to" ;;
	*.xz) xz -dc "$file" >"$to" ;;
	*.zst) zstd -qdc "$file" >"$to" ;;
	*.gz) gzip -dc "$file" >"$to" ;;
	esac
	depends=$(tr '\0' '\n' <"$to" | grep -am1 '^depends=' || true)
	for depends in $(tr , ' ' <<<"${depends#depends=}"); do module "$depends" "$list"; done
	echo "$name" >>"$list"
}
: >"$tree/etc/modules"
for name in "${load[@]}"; do module "$name" "$tree/etc/modules"; done
cp "$tree/etc/modules" "$tree/carry"
for name in "${carry[@]}"; do module "$name" "$tree/carry"; done
rm "$tree/carry"
for file in "${files[@]}"; do
	from=${file%%:*} to=/$(basename "${file%%:*}")
	[[ $file != *:* ]] || to=${file#*:}
	[[ -e $from ]] || fail "$from is not there"
	[[ $to == /* && /$to/ != */../* ]] || fail "--file $file: where it is in the guest begins with /, and has no .."
	mkdir -p "$(dirname "$tree$to")"
	cp -rT "$from" "$tree$to"
done
find "$tree" -exec touch -hd @0 {} +
tmp=$(mktemp "$out.XXXXXX") || fail "$out cannot be written"
(cd "$tree" && find . -print0 | LC_ALL=C sort -z | cpio --null --quiet -H newc -o -R 0:0 --reproducible) | gzip -1n >"$tmp" ||
	{ rm -f "$tmp"; fail "$out could not be written; check free space (df -h)"; }
chmod 644 "$tmp"
mv "$tmp" "$out"
