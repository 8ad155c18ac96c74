package kvm

import "testing"

func TestReasonString(t *testing.T) {
	for _, tt := range []struct {
		r     Reason
		want  string
		known bool
	}{
		{0, "unknown", true}, {1, "exception", true}, {2, "io", true}, {3, "hypercall", true},
		{4, "debug", true}, {5, "hlt", true}, {6, "mmio", true}, {7, "irq-window-open", true},
		{8, "shutdown", true}, {9, "fail-entry", true}, {10, "intr", true}, {11, "set-tpr", true},
		{12, "tpr-access", true}, {13, "s390-sieic", true}, {14, "s390-reset", true},
		{15, "dcr", true}, {16, "nmi", true}, {17, "internal-error", true}, {18, "osi", true},
		{19, "papr-hcall", true}, {20, "s390-ucontrol", true}, {21, "watchdog", true},
		{22, "s390-tsch", true}, {23, "epr", true}, {24, "system-event", true},
		{25, "s390-stsi", true}, {26, "ioapic-eoi", true}, {27, "hyperv", true},
		{28, "arm-nisv", true}, {29, "x86-rdmsr", true}, {30, "x86-wrmsr", true},
		{31, "dirty-ring-full", true}, {32, "ap-reset-hold", true}, {33, "x86-bus-lock", true},
		{34, "xen", true}, {35, "riscv-sbi", true}, {36, "riscv-csr", true}, {37, "notify", true},
		{38, "loongarch-iocsr", true}, {39, "memory-fault", true}, {40, "tdx", true},
		{41, "arm-sea", true},
		{42, "exit-42", false},
		{1<<31 - 1, "exit-2147483647", false},
		{ReasonInterrupted, "interrupted", true},
		{1<<32 - 1, "exit-4294967295", false},
	} {
		if got := tt.r.String(); got != tt.want {
			t.Errorf("Reason(%d) = %q, want %q", uint32(tt.r), got, tt.want)
		}
		if got := tt.r.known(); got != tt.known {
			t.Errorf("Reason(%d).Known() = %v, want %v", uint32(tt.r), got, tt.known)
		}
	}
	if NumReasons != 42 {
		t.Errorf("NumReasons = %d, want 42", NumReasons)
	}
}
