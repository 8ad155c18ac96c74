// Package guest models the inside of a guest: its ELF image and symbols, its physical
// memory, its page tables, its text, and its state at boot.
package guest
