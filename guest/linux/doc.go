// Package linux describes a Linux guest: its kernel's image, how to boot it, its
// names, its tables of self-patched code, and what its memory says about types,
// tasks, modules and stacks while it runs. It knows Linux, not KVM.
package linux
