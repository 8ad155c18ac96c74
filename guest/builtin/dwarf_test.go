package builtin

import (
	"bytes"
	"debug/dwarf"
	"debug/elf"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
)

// entries calls f for each DWARF entry of a tag.
func entries(t *testing.T, d *dwarf.Data, tag dwarf.Tag, f func(*dwarf.Entry)) {
	t.Helper()
	for r := d.Reader(); ; {
		e, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if e == nil {
			return
		}
		if e.Tag == tag {
			f(e)
		}
	}
}

func openDWARF(t *testing.T) *dwarf.Data {
	t.Helper()
	f, err := elf.NewFile(bytes.NewReader(ELF()))
	if err != nil {
		t.Fatal(err)
	}
	d, err := f.DWARF()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestLayouts compares what the host believes about the guest's structures
// with what the compiler made of them.
func TestLayouts(t *testing.T) {
	want := map[string]map[string]int64{
		"stack_info": {
			"magic": 0, "task": StackInfoTask, "cpu": StackInfoCPU, "pid": StackInfoPID,
			"tgid": StackInfoTGID, "comm": StackInfoComm,
		},
		"call_mailbox": {
			"magic": guest.MailboxMagicOff, "request": guest.MailboxRequest, "done": guest.MailboxDone,
			"fn": guest.MailboxFn, "args": guest.MailboxArgs, "ret": guest.MailboxRet, "fault": MailboxFault,
		},
		"guest_profile": {
			"magic": guest.ProfileMagicAt, "stack_mask": guest.ProfileStackMask, "stack_magic": guest.ProfileStackMagic,
			"flags": guest.ProfileFlagsAt, "magic_off": guest.ProfileMagicOff, "cpu_off": guest.ProfileCPUOff,
			"pid_off": guest.ProfilePIDOff, "tgid_off": guest.ProfileTGIDOff, "comm_off": guest.ProfileCommOff,
		},
		"boot_info": {
			"magic": guest.BootInfoMagic, "size": guest.BootInfoSizeof, "ram_bytes": guest.BootInfoRAM,
			"cpu": guest.BootInfoVCPU, "ncpus": guest.BootInfoNVCPUs, "cmdline": guest.BootInfoCmdline,
			"cmdline_len": guest.BootInfoCmdlineLen, "kexec_lo": guest.BootInfoKernelLo,
			"kexec_hi": guest.BootInfoKernelHi, "uexec_lo": guest.BootInfoUserLo, "uexec_hi": guest.BootInfoUserHi,
			"stack_top": guest.BootInfoStackTop, "tick_us": guest.BootInfoTickUsec,
			"timer_vector": guest.BootInfoTimerVec, "flags": guest.BootInfoFlags,
		},
	}
	d := openDWARF(t)
	seen := make(map[string]bool)
	entries(t, d, dwarf.TagStructType, func(e *dwarf.Entry) {
		name, _ := e.Val(dwarf.AttrName).(string)
		fields, ok := want[name]
		if decl, _ := e.Val(dwarf.AttrDeclaration).(bool); !ok || decl {
			return
		}
		typ, err := d.Type(e.Offset)
		if err != nil {
			t.Fatal(err)
		}
		seen[name] = true
		got := make(map[string]int64)
		for _, f := range typ.(*dwarf.StructType).Field {
			got[f.Name] = f.ByteOffset
		}
		for f, off := range fields {
			if g, ok := got[f]; !ok || g != off {
				t.Errorf("struct %s: %s is at %d (%v), want %d", name, f, g, ok, off)
			}
		}
	})
	for name := range want {
		if !seen[name] {
			t.Errorf("DWARF has no struct %s", name)
		}
	}
}

// TestProfile: what the image says of its stacks is what this package says. The
// flags are the guest's to set, at boot.
func TestProfile(t *testing.T) {
	img, err := guest.ParseELF(ELF())
	if err != nil {
		t.Fatal(err)
	}
	p, err := img.Profile()
	p.FlagsAt = 0
	mask := int64(-StackSize)
	if want := (guest.Profile{StackMask: uint64(mask), StackMagic: StackMagic, CPUOff: StackInfoCPU, PIDOff: StackInfoPID,
		TGIDOff: StackInfoTGID, CommOff: StackInfoComm, Flags: guest.ProfileKernelOnce}); err != nil || p != want {
		t.Errorf("%+v, %v, want %+v", p, err, want)
	}
}

func TestDWARFArguments(t *testing.T) {
	want := map[string]int{"do_fork": 6, "vfs_read": 4, "sys_open": 3, "tcp_v4_rcv": 1, "many_args": 8, "user_hot": 2}
	got := make(map[string]int)
	for r := openDWARF(t).Reader(); ; {
		e, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if e == nil {
			break
		}
		name, _ := e.Val(dwarf.AttrName).(string)
		if _, ok := want[name]; !ok || e.Tag != dwarf.TagSubprogram || e.Val(dwarf.AttrLowpc) == nil {
			continue
		}
		got[name] = 0
		for {
			c, err := r.Next()
			if err != nil || c == nil || c.Tag == 0 {
				break
			}
			if c.Tag == dwarf.TagFormalParameter {
				got[name]++
			}
			if c.Children {
				r.SkipChildren()
			}
		}
	}
	for name, n := range want {
		if got[name] != n {
			t.Errorf("%s has %d arguments, want %d", name, got[name], n)
		}
	}
}

// TestInlined: rotate_mix has no symbol, but its two places are known.
func TestInlined(t *testing.T) {
	if s := funcs(t, open(t))["rotate_mix"]; len(s) != 0 {
		t.Errorf("rotate_mix has %d symbols, want none", len(s))
	}
	d := openDWARF(t)
	n := 0
	entries(t, d, dwarf.TagInlinedSubroutine, func(e *dwarf.Entry) {
		origin, ok := e.Val(dwarf.AttrAbstractOrigin).(dwarf.Offset)
		if !ok {
			return
		}
		r := d.Reader()
		r.Seek(origin)
		if o, err := r.Next(); err == nil && o != nil && o.Val(dwarf.AttrName) == "rotate_mix" {
			n++
		}
	})
	if n != 4 { // twice in the kernel, twice in the user program
		t.Errorf("rotate_mix is inlined in %d places, want 4", n)
	}
}
