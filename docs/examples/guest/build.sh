set -e
sources="main.c entry.S" # the program's files
objects() { for f in $sources; do echo "${f%.*}.o"; done; }
# -g: lines, variables and unwind data, which bt, finish, vars and definitions by line use.
gcc -O2 -g -ffile-prefix-map="$PWD"=. -ffreestanding -fno-pie -mcmodel=kernel -mno-red-zone -mgeneral-regs-only -fcf-protection=none \
    -fno-stack-protector -fno-asynchronous-unwind-tables -Wall -Wextra -Werror -c $sources
ld -static -no-pie -nostdlib --build-id=none -z max-page-size=4096 -z noexecstack -T guest.lds -o first.elf $(objects)
rm $(objects)
# With Debian's package dwarves: types, from which scripts know args.n.
if command -v pahole >/dev/null; then pahole -J first.elf; fi
