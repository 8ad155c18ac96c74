// Package symfile writes the known symbols and frames of a running kernel's code as an ELF file, for debuggers
// that have no other file of it.
//
// The package can be imported, but is not supported: it serves the daemon and
// changes without notice (docs/stability.md).
package symfile
