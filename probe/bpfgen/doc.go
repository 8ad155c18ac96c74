// Package bpfgen is what compilers to eBPF have in common: labels and jumps, constants,
// accesses to memory, and what a program takes from its budget.
package bpfgen
