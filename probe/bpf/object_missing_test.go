package bpf

import (
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// TestOwnTypes: a type of a map's values that no kernel has is as the object defines it.
func TestOwnTypes(t *testing.T) {
	for _, k := range []*Kernel{testKernel(t), nil} {
		c, err := loadIn(t, "owntype.o", Selection{Section: "kprobe/vfs_read", Kernel: k})
		if err != nil {
			t.Fatal(err)
		}
		if r0, err := NewVM(c.find(t, "own").Program, 0).Run(regsContext(x86.Regs{}), NoEnv{}); r0 != 0 || err != nil {
			t.Fatal(r0, err)
		}
		if first, last := globalWord(t, c, "values", 0), globalWord(t, c, "values", 16); first != 5 || last&0xffffffff != 6 {
			t.Errorf("%d, %d", first, last)
		}
	}
}

// TestMissingTypes: the error for a relocation names the type, the field and the kernel.
func TestMissingTypes(t *testing.T) {
	for _, tt := range []struct {
		file, section string
		k             *Kernel
		want          string
	}{
		{"owntype.o", "kprobe/vfs_write", testKernel(t), `program "other" in section "kprobe/vfs_write", instruction 1: the types (BTF) of the guest's kernel (Linux 6.1) have no struct elsewhere: it is a type of a module`},
		{"owntype.o", "kprobe/vfs_write", nil, "it depends on struct elsewhere, a kernel type (CO-RE) other than struct pt_regs"},
		{"owntype.o", "kprobe/vfs_open", testKernel(t), "enum state of the guest's kernel (Linux 6.1) has no value NEVER: use bpf_core_enum_value_exists before"},
		{"kernel.o", "kprobe/vfs_write", testKernel(t), "struct task_struct of the guest's kernel (Linux 6.1) has no field never, or one of another type: use bpf_core_field_exists before"},
	} {
		if _, err := loadIn(t, tt.file, Selection{Section: tt.section, Kernel: tt.k}); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s, %s: %v, want %q", tt.file, tt.section, err, tt.want)
		}
	}
}
