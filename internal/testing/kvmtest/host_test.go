package kvmtest

import "testing"

func TestClassify(t *testing.T) {
	const (
		intel = "processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: fpu vme sse2 vmx ssse3\n\nprocessor\t: 1\nflags\t\t: fpu svm\n"
		amd   = "processor\t: 0\nflags\t\t: fpu svm\n"
		none  = "processor\t: 0\nmodel name\t: vmx svm\nvmx flags\t: vnmi\nflags\t\t: fpu vmxx nosvm\n"
	)
	for _, tt := range []struct {
		pvm     bool
		cpuinfo string
		nested  string
		want    Host
	}{
		{true, none, "", HostPVM},
		{true, intel, "", HostPVM},
		{false, intel, "", HostVMX},
		{false, amd, "", HostSVM},
		{false, none, "", HostOther},
		{false, "", "", HostOther},
		{false, intel, "bochs", HostBochs},
		{false, amd, "qemu", HostQEMU},
		{false, amd, "bochs", HostOther},
		{false, intel, "qemu", HostOther},
	} {
		if got := classify(tt.pvm, tt.cpuinfo, tt.nested); got != tt.want {
			t.Errorf("classify(%v, %q, %q) = %q, want %q", tt.pvm, tt.cpuinfo, tt.nested, got, tt.want)
		}
	}
}
