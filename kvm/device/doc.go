// Package device is the board of a PC that a guest with drivers of its own finds: serial
// port, clock, power management and ACPI tables that describe them, and virtio devices.
//
// The package can be imported, but is not supported: it serves kvm/machine and
// changes without notice (docs/stability.md).
package device
