// Package elfbuild writes ELF files.
//
// The package can be imported, but is not supported: it serves guest/symfile, tools and tests, and
// changes without notice (docs/stability.md).
package elfbuild
