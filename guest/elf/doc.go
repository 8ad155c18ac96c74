// Package elf reads ELF64 files of x86-64 and trusts nothing in them: what it
// takes of time and memory is proportional to the file.
//
// The package can be imported, but is not supported: it serves the packages here that read files, and
// changes without notice (docs/stability.md).
package elf
