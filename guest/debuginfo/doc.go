// Package debuginfo finds places of a program's source in its code, and the source of its
// code, by DWARF.
package debuginfo
