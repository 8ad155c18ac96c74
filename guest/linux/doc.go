// Package linux reads Linux kernels: their images, their names, their tables of what
// they patch, and what a running one says of its tasks and modules. It knows Linux,
// not KVM.
package linux
