// Package linux reads Linux kernels: their images, their names, and their tables
// of what they patch. It knows Linux, not KVM.
package linux
