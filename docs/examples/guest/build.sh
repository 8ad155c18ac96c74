set -e
gcc -O2 -ffreestanding -fno-pie -mcmodel=kernel -mno-red-zone -mgeneral-regs-only -fcf-protection=none -fno-stack-protector \
    -fno-asynchronous-unwind-tables -Wall -Wextra -Werror -c main.c entry.S
ld -static -no-pie -nostdlib --build-id=none -z max-page-size=4096 -z noexecstack -T guest.lds -o first.elf entry.o main.o
rm entry.o main.o
