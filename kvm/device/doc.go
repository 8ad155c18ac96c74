// Package device is the board of a PC that a guest with drivers of its own finds: serial
// port, clock, power management and ACPI tables that describe them, and virtio devices.
package device
