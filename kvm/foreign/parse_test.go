package foreign

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	_ "github.com/guestprobe/guestprobe/internal/testing/fuzzing" // keeps the target at work
)

// registersText is as QEMU 7.2 prints it, of a vCPU in 64-bit mode and of one in 32-bit mode.
const registersText = "\r\nCPU#0\r\n" +
	"RAX=0000000000000010 RBX=0000000000009500 RCX=00000000c0000080 RDX=0000000000000000\r\n" +
	"RSI=0000000000000000 RDI=0000000000104000 RBP=0000000000000000 RSP=0000000000105f00\r\n" +
	"R8 =0000000000000008 R9 =0000000000000009 R10=0000000000000000 R11=0000000000000000\r\n" +
	"R12=0000000000000000 R13=0000000000000000 R14=0000000000000000 R15=000000000000000f\r\n" +
	"RIP=00000000001000e8 RFL=00000246 [---Z-P-] CPL=3 II=0 A20=1 SMM=0 HLT=0\r\n" +
	"ES =0010 0000000000000000 ffffffff 00c09300 DPL=0 DS   [-WA]\r\n" +
	"CS =001b 0000000000000000 ffffffff 00a0fa00 DPL=3 CS64 [-R-]\r\n" +
	"SS =0023 0000000000000000 ffffffff 00c0f200 DPL=3 DS   [-W-]\r\n" +
	"DS =0010 0000000000000000 ffffffff 00c09300 DPL=0 DS   [-WA]\r\n" +
	"FS =0010 00007f0000000000 ffffffff 00c09300 DPL=0 DS   [-WA]\r\n" +
	"GS =0010 ffff888000000000 ffffffff 00c09300 DPL=0 DS   [-WA]\r\n" +
	"LDT=0000 0000000000000000 0000ffff 00008200 DPL=0 LDT\r\n" +
	"TR =0000 0000000000000000 0000ffff 00008b00 DPL=0 TSS64-busy\r\n" +
	"GDT=     0000000000100140 00000027\r\n" +
	"IDT=     fffffe0000000000 00000fff\r\n" +
	"CR0=80000011 CR2=0000000000000000 CR3=0000000000101000 CR4=00000020\r\n" +
	"DR0=0000000000000001 DR1=0000000000000000 DR2=0000000000000000 DR3=0000000000000000 \r\n" +
	"DR6=00000000ffff0ff0 DR7=0000000000000400\r\n" +
	"EFER=0000000000000d00\r\n" +
	"FCW=037f FSW=0000 [ST=0] FTW=00 MXCSR=00001f80\r\n" +
	"\r\nCPU#1\r\n" +
	"EAX=000f49f6 EBX=00000000 ECX=000002ff EDX=00000001\r\n" +
	"ESI=00000000 EDI=00000000 EBP=00000000 ESP=00006c5c\r\n" +
	"EIP=000fd09a EFL=00000002 [-------] CPL=0 II=0 A20=1 SMM=0 HLT=1\r\n" +
	"ES =0010 00000000 ffffffff 00c09300 DPL=0 DS   [-WA]\r\n" +
	"CS =0008 00000000 ffffffff 00c09b00 DPL=0 CS32 [-RA]\r\n" +
	"SS =0010 00000000 ffffffff 00c09300 DPL=0 DS   [-WA]\r\n" +
	"DS =0010 00000000 ffffffff 00c09300 DPL=0 DS   [-WA]\r\n" +
	"FS =0010 00000000 ffffffff 00c09300 DPL=0 DS   [-WA]\r\n" +
	"GS =0010 00000000 ffffffff 00c09300 DPL=0 DS   [-WA]\r\n" +
	"LDT=0000 00000000 0000ffff 00008200 DPL=0 LDT\r\n" +
	"TR =0000 00000000 0000ffff 00008b00 DPL=0 TSS32-busy\r\n" +
	"GDT=     000f6180 00000037\r\n" +
	"IDT=     000f61be 00000000\r\n" +
	"CR0=00000011 CR2=00000000 CR3=00000000 CR4=00000000\r\n" +
	"DR0=0000000000000000 DR1=0000000000000000 DR2=0000000000000000 DR3=0000000000000000 \r\n" +
	"DR6=00000000ffff0ff0 DR7=0000000000000400\r\n" +
	"EFER=0000000000000000\r\n"

func TestParseRegisters(t *testing.T) {
	all, err := parseRegisters(registersText)
	if err != nil || len(all) != 2 {
		t.Fatalf("%d vCPUs, %v; want 2", len(all), err)
	}
	a, b := all[0], all[1]
	if a.Regs.RAX != 0x10 || a.Regs.RDI != 0x104000 || a.Regs.R8 != 8 || a.Regs.R9 != 9 || a.Regs.R15 != 15 || a.Regs.RIP != 0x1000e8 || a.Regs.RFLAGS != 0x246 {
		t.Errorf("registers of vCPU 0: %+v", a.Regs)
	}
	if s := a.Sregs; s.CR3 != 0x101000 || s.CR0 != 0x80000011 || s.EFER != 0xd00 || s.IDT.Base != 0xfffffe0000000000 || s.IDT.Limit != 0xfff || s.GS.Base != 0xffff888000000000 {
		t.Errorf("system registers of vCPU 0: %+v", s)
	}
	if c := a.Sregs.CS; c.Selector != 0x1b || c.L != 1 || c.DPL != 3 || c.Present != 1 || c.S != 1 || c.Typ != 10 || c.G != 1 || c.DB != 0 {
		t.Errorf("cs of vCPU 0: %+v", c)
	}
	if a.Halted || !a.Known || !a.HasDebug || a.Debug.DB[0] != 1 || a.Debug.DR7 != 0x400 {
		t.Errorf("vCPU 0: %+v", a)
	}
	if b.Regs.RAX != 0xf49f6 || b.Regs.RIP != 0xfd09a || b.Regs.RFLAGS != 2 || !b.Halted || b.Sregs.CS.DB != 1 || b.Sregs.EFER != 0 {
		t.Errorf("vCPU 1: %+v", b)
	}
	if _, err := parseRegisters(strings.Replace(registersText, "CR3=", "CRX=", 1)); err == nil || !strings.Contains(err.Error(), "no CR3") {
		t.Errorf("without CR3: %v", err)
	}
}

func TestFlatRanges(t *testing.T) {
	text := `FlatView #0
 AS "I/O", root: io
 Root memory region: io
  0000000000000000-0000000000000007 (prio 0, i/o): dma-chan

FlatView #1
 AS "memory", root: system
 AS "cpu-memory-0", root: system
 Root memory region: system
  0000000000000000-000000000009ffff (prio 0, ram): mem KVM
  00000000000a0000-00000000000bffff (prio 1, i/o): vga-lowmem
  00000000000c0000-00000000000cafff (prio 0, rom): mem @00000000000c0000 KVM
  0000000100000000-000000013fffffff (prio 0, ram): mem @00000000c0000000 KVM
  00000000fffc0000-00000000ffffffff (prio 0, rom): pc.bios KVM
  garbage-line
  zzzz-0 (prio 0, ram): mem

FlatView #2
 AS "other"
  0000000000000000-0000000000000fff (prio 0, ram): mem
`
	want := []flatRange{
		{0, 0x9ffff, "mem", 0}, {0xc0000, 0xcafff, "mem", 0xc0000}, {0x100000000, 0x13fffffff, "mem", 0xc0000000}, {0xfffc0000, 0xffffffff, "pc.bios", 0},
	}
	if got := flatRanges(text); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// TestList: processes, as /proc describes them.
func TestList(t *testing.T) {
	dir := t.TempDir()
	process := func(pid, comm, exe, cmdline string, fds map[string]string) {
		at := filepath.Join(dir, pid)
		if err := os.MkdirAll(filepath.Join(at, "fd"), 0o700); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{"comm": comm + "\n", "cmdline": strings.ReplaceAll(cmdline, " ", "\x00") + "\x00"} {
			if err := os.WriteFile(filepath.Join(at, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		links := map[string]string{"exe": exe, "cwd": "/srv/vm"}
		for fd, to := range fds {
			links["fd/"+fd] = to
		}
		for name, to := range links {
			if err := os.Symlink(to, filepath.Join(at, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	one := map[string]string{"3": "/dev/kvm", "8": "anon_inode:kvm-vm", "9": "anon_inode:kvm-vcpu:0", "11": "anon_inode:kvm-vcpu:1", "x": "anon_inode:kvm-vm"}
	process("30", "CPU 0/KVM", "/usr/bin/qemu-system-x86_64 (deleted)", "/usr/bin/qemu-system-x86_64 -name guest=web,,1,debug-threads=on -qmp unix:qmp.sock,server=on", one)
	process("4", "firecracker", "/opt/firecracker", "firecracker --id=fc-1", map[string]string{"8": "anon_inode:kvm-vm"})
	process("5", "bash", "/bin/bash", "bash", map[string]string{"8": "/dev/kvm"})
	process("6", "libvirt", "/usr/bin/qemu", "qemu -name db -chardev socket,id=mon,path=/run/m.sock -mon chardev=mon,id=m,mode=control", map[string]string{"1": "anon_inode:kvm-vm", "2": "anon_inode:kvm-vm"})
	if err := os.WriteFile(filepath.Join(dir, "cpuinfo"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	all, unseen, err := list(dir)
	if err != nil || unseen != 0 {
		t.Fatal(unseen, err)
	}
	uid := uint32(os.Getuid())
	want := []Process{
		{PID: 4, UID: uid, VMM: "firecracker", Name: "fc-1", VMs: []int{8}, VCPUs: map[int]int{}},
		{PID: 6, UID: uid, VMM: "qemu", Name: "db", VMs: []int{1, 2}, VCPUs: map[int]int{}, QMP: "/run/m.sock"},
		{PID: 30, UID: uid, VMM: "qemu-system-x86_64", Name: "web,1", VMs: []int{8}, VCPUs: map[int]int{0: 9, 1: 11}, QMP: "/srv/vm/qmp.sock"},
	}
	if !reflect.DeepEqual(all, want) {
		t.Errorf("got  %+v\nwant %+v", all, want)
	}
	for _, p := range all[:2] {
		if _, err := openOutside(p); CodeOf(err) != map[int]Code{4: CodeNoVM, 6: CodeSeveralVMs}[p.PID] {
			t.Errorf("pid %d: %v", p.PID, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(registersText)
	f.Add("FlatView #1\n AS \"memory\"\n  0-fff (prio 0, ram): mem @0 KVM\n")
	f.Add("qemu -name guest=a,,b -qmp unix:/q")
	f.Fuzz(func(t *testing.T, text string) {
		if all, err := parseRegisters(text); err == nil {
			for _, c := range all {
				if !c.Known {
					t.Error("a vCPU without registers and without an error")
				}
			}
		}
		flatRanges(text)
		args := strings.Fields(text)
		vmName(args)
		qmpSockets(args)
	})
}
