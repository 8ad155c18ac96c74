// Package kerneltest makes small kernels for tests: ELF files, tables of names, types, and
// the ways in which kernels are packed.
package kerneltest
