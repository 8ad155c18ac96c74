// Package elf reads ELF64 files of x86-64 and trusts nothing in them: what it
// takes of time and memory is proportional to the file.
package elf
