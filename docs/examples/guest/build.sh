set -e
# -g: lines, variables and unwind data, which bt, finish, vars and definitions by line use.
gcc -O2 -g -ffile-prefix-map="$PWD"=. -ffreestanding -fno-pie -mcmodel=kernel -mno-red-zone -mgeneral-regs-only -fcf-protection=none \
    -fno-stack-protector -fno-asynchronous-unwind-tables -Wall -Wextra -Werror -c main.c entry.S
ld -static -no-pie -nostdlib --build-id=none -z max-page-size=4096 -z noexecstack -T guest.lds -o first.elf entry.o main.o
rm entry.o main.o
# With Debian's package dwarves: types, from which scripts know args.n.
if command -v pahole >/dev/null; then pahole -J first.elf; fi
