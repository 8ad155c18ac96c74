// Package symfile writes what is known of the code of a running kernel as an ELF file, for debuggers
// that have no other file of it.
package symfile
