// Package debuginfo maps places in a program's source to addresses, and addresses to
// source, using DWARF.
package debuginfo
