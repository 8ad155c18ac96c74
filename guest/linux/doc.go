// Package linux is what is known of a Linux guest: its kernel's image, how that boots,
// its names, its tables of what it patches, and what it says while it runs of its types,
// tasks, modules and stacks. It knows Linux, not KVM.
package linux
