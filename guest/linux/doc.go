// Package linux is what is known of a Linux guest: its kernel's image, how that boots,
// its names, and its tables of what it patches. It knows Linux, not KVM.
package linux
