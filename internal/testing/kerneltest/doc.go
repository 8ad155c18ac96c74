// Package kerneltest makes small kernels for tests: ELF files, tables of names,
// types, and kernels' packed formats.
package kerneltest
