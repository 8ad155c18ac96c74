package kvmtest

import (
	"os"
	"strings"
)

// nestedEnv is the environment variable with which the nested hosts name the
// emulator that they run on: bochs or qemu.
const nestedEnv = "GUESTPROBE_NESTED"

// Host is a class of KVM hosts. Hosts of one class deliver the same traps in the
// same way, so tests can say exactly what they expect there.
type Host string

// The classes that tests have tables for.
const (
	HostPVM   Host = "kvm_pvm"         // a guest of another hypervisor, without VMX or SVM
	HostVMX   Host = "kvm_intel"       // on a processor
	HostSVM   Host = "kvm_amd"         // on a processor
	HostBochs Host = "kvm_intel-bochs" // make test-vmx
	HostQEMU  Host = "kvm_amd-qemu"    // make test-svm
	HostOther Host = "other"           // another host; tests expect what the KVM API promises
)

// DetectHost returns the class of the machine that the test runs on, by the KVM
// module that is in use there and by nestedEnv.
func DetectHost() Host {
	cpuinfo, _ := os.ReadFile("/proc/cpuinfo") // without it no flag is found
	_, err := os.Stat("/sys/module/kvm_pvm")
	return classify(err == nil, string(cpuinfo), os.Getenv(nestedEnv))
}

// classify is DetectHost for given facts: the module kvm_pvm, /proc/cpuinfo, and
// nestedEnv. The modules kvm_intel and kvm_amd are no evidence when they are
// built into the kernel: then both are there.
func classify(pvm bool, cpuinfo, nested string) Host {
	switch {
	case pvm:
		return HostPVM
	case hasFlag(cpuinfo, "vmx") && nested == "bochs":
		return HostBochs
	case hasFlag(cpuinfo, "svm") && nested == "qemu":
		return HostQEMU
	case nested != "":
		return HostOther
	case hasFlag(cpuinfo, "vmx"):
		return HostVMX
	case hasFlag(cpuinfo, "svm"):
		return HostSVM
	}
	return HostOther
}

// hasFlag reports whether the first processor of /proc/cpuinfo has a flag.
func hasFlag(cpuinfo, flag string) bool {
	for line := range strings.Lines(cpuinfo) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "flags" {
			return strings.Contains(" "+strings.TrimSpace(value)+" ", " "+flag+" ")
		}
	}
	return false
}
