.section .multiboot,"a"
.align 8
.long 0xe85250d6, 0, 16, -(0xe85250d6+16)
.word 0,0
.long 8
.text
.globl _start
_start: hlt
