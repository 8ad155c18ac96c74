// Package sdt reads the statically defined probes (USDT) that C's <sys/sdt.h> adds to a program's ELF file: their addresses, their
// semaphores, and where their arguments are when a probe is reached. It does not trust the file.
//
// The package can be imported, but is not supported: it serves the packages of this module that probe programs, and
// changes without notice (docs/stability.md).
package sdt
