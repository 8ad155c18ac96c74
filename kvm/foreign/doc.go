// Package foreign reaches guests of other VMMs on this host: it lists them, reads
// their memory, and stops their vCPUs for a moment to read the registers. It
// changes nothing in a guest.
//
// Two ways lead to a guest. A QEMU with its RAM in a shared file and a QMP
// socket cooperates: no privilege is needed but access to the two. Any other VMM
// is read from outside: its memory slots and vCPU threads by a BPF program that
// reads struct kvm (Linux 5.17 and later, with BTF), its memory by
// process_vm_readv(2), and its registers from the vCPUs' shared memory, while
// ptrace(2) keeps the vCPU threads out of KVM_RUN. That needs CAP_SYS_PTRACE,
// CAP_BPF, CAP_PERFMON, and CAP_DAC_READ_SEARCH for
// processes of other users.
package foreign
