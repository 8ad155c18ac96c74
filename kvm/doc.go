// Package kvm is the typed face of /dev/kvm: systems, VMs and vCPUs as owned
// values, every exit decoded, and one thread for each vCPU.
package kvm
