// Package guest knows what is inside a guest: its ELF image and symbols, its
// physical memory, its page tables, its text, and the state it boots in.
package guest
