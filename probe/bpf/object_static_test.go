package bpf

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest/sdt"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// appProbes returns the probes of /app, which is a link to /usr/bin/app.
func appProbes(path string) ([]sdt.Probe, string, error) {
	if path != "/app" {
		return nil, path, errors.New(path + ": no such file")
	}
	tick := func(off uint64, args string) sdt.Probe {
		return sdt.Probe{Provider: "app", Name: "tick", Offset: off, Semaphore: 0x2010, Args: sdt.ParseArgs(args)}
	}
	return []sdt.Probe{
		tick(0x1000, "8@%rdi -4@%esi 1@%dh"),
		{Provider: "app", Name: "other", Offset: 0x1100},
		tick(0x1200, "8@-8(%rbx) -4@$-7 2@%r9w -1@$-1"),
		{Provider: "app", Name: "float", Offset: 0x1300, Args: sdt.ParseArgs("8@%rax 8f@%xmm0")},
		{Provider: "app", Name: "indexed", Offset: 0x1300, Args: sdt.ParseArgs("8@(%rax,%rcx,4)")},
		{Provider: "app", Name: "absolute", Offset: 0x1300, Args: sdt.ParseArgs("8@8(,%rcx,4)")},
		{Provider: "app", Name: "many", Offset: 0x1300, Args: sdt.ParseArgs(strings.Repeat("1@$1 ", 13))},
		{Provider: "app", Name: "lost", Why: "it is at 0x1, where the file has no code"},
	}, "/usr/bin/app", nil
}

// appKernel is a kernel without types, which is enough for these programs.
var appKernel = &Kernel{Version: 0x60100}

func TestObjectStatic(t *testing.T) {
	o, err := LoadObject(readObject(t, "usdt.o"), Selection{Static: appProbes, Kernel: appKernel})
	if err != nil {
		t.Fatal(err)
	}
	c, err := o.LoadIn(2, func(string) Memory { return Heap{} }, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if len(c.Programs) != 2 {
		t.Fatalf("%d programs", len(c.Programs))
	}
	env := &fakeEnv{}
	env.put(0x7ff8, string(binary.LittleEndian.AppendUint64(nil, 900)))
	for i, want := range []string{"/usr/bin/app:0x1000(0x2010)", "/usr/bin/app:0x1200(0x2010)"} {
		p := c.Programs[i]
		if p.AttachTo != want || !p.InUser() || p.Kind() != Kprobe || p.Name() != []string{"tick", "tick_2"}[i] {
			t.Errorf("%s: %+v", p.Name(), p)
		}
		ctx := make([]byte, RegsSize)
		PutRegs(ctx, &x86.Regs{RDI: 40, RSI: 0xfffffffe, RDX: 0x1234, RBX: 0x8000, R9: 0x70003}, 0, 0)
		if r0, err := NewVM(p.Program, 0).Run(ctx, env); r0 != 0 || err != nil {
			t.Fatalf("%d, %v", r0, err)
		}
	}
	for key, want := range []int64{940, -9, 0x12 + 3, 7, 2, 2} {
		if got := lookup(t, c.Maps["sums"], u32(uint32(key))); int64(got[0]) != want {
			t.Errorf("sums[%d] = %d, want %d", key, int64(got[0]), want)
		}
	}

	// A place for a program without one. There is no information about files.
	o, err = LoadObject(readObject(t, "usdt.o"), Selection{Static: appProbes, Kernel: appKernel, Section: "?usdt", At: map[string]string{"": "/app:app:tick"}})
	if err != nil || len(o.Programs) != 2 || o.Programs[1].AttachTo != "/usr/bin/app:0x1200(0x2010)" {
		t.Errorf("%+v, %v", o, err)
	}
	o, err = LoadObject(readObject(t, "usdt.o"), Selection{Kernel: appKernel})
	if err != nil || len(o.Programs) != 1 || o.Programs[0].AttachTo != "/app:app:tick" {
		t.Errorf("%+v, %v", o, err)
	}

	for at, want := range map[string]string{
		"/app:app:none":     "/app has no statically defined probe app:none",
		"/none:app:tick":    "/none: no such file",
		"/app:tick":         "want usdt//PATH:PROVIDER:NAME",
		"app:app:tick":      "want usdt//PATH:PROVIDER:NAME",
		"/app:app:lost":     "cannot be probed: it is at 0x1",
		"/app:app:float":    "argument 1, 8f@%xmm0, cannot be read: it is a floating-point number",
		"/app:app:indexed":  "argument 0, 8@(%rax,%rcx,4), cannot be read: its address has an index, which this object's usdt.bpf.h does not know",
		"/app:app:absolute": "its address has no base",
		"/app:app:many":     "it has 13 arguments, and usdt.bpf.h is for 12",
	} {
		if _, err := LoadObject(readObject(t, "usdt.o"), Selection{Static: appProbes, Kernel: appKernel, At: map[string]string{"": at}}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", at, err, want)
		}
	}
}

// TestPutArg checks arguments in the format of libbpf 1.7, with an index in bit fields.
func TestPutArg(t *testing.T) {
	u8, u16, u64 := &btf.Int{Name: "u8", Size: 1}, &btf.Int{Name: "u16", Size: 2}, &btf.Int{Name: "u64", Size: 8}
	kind := &btf.Enum{Name: "__bpf_usdt_arg_type", Size: 4}
	arg := &btf.Struct{Name: "__bpf_usdt_arg_spec", Size: 16, Members: []btf.Member{
		{Name: "val_off", Type: u64}, {Name: "arg_type", Type: kind, Offset: 64, BitfieldSize: 8}, {Name: "idx_reg_off", Type: u16, Offset: 72, BitfieldSize: 12},
		{Name: "scale_bitshift", Type: u16, Offset: 84, BitfieldSize: 4}, {Name: "reg_off", Type: u16, Offset: 96}, {Name: "arg_signed", Type: u8, Offset: 112}, {Name: "arg_bitshift", Type: u8, Offset: 120},
	}}
	b := make([]byte, 16)
	a := sdt.ParseArgs("-4@-8(%rax,%rcx,4)")[0]
	if err := putArg(arg, b, &a); err != nil {
		t.Fatal(err)
	}
	want := "\xf8\xff\xff\xff\xff\xff\xff\xff" + "\x03\x58\x20\x00" + "\x50\x00\x01\x20" // rcx is at 0x58 of struct pt_regs, rax at 0x50
	if string(b) != want {
		t.Errorf("% x, want % x", b, want)
	}
	if err := putArg(arg, make([]byte, 8), &a); err == nil {
		t.Error("a member outside of its structure was written")
	}
}
