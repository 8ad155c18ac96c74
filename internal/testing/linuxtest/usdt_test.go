package linuxtest

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/elfbuild"
	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/session"
)

// Addresses of the data of TestStaticProbes' program, which is in a page of its own.
const (
	staticText  = guest.GVA(0x4000b0) // after the headers, which are in the same page
	staticData  = guest.GVA(0x403000)
	staticBytes = 0x2000 // file offset of the data
	semaphoreAt = 0x10
	tableAt     = 0x100
	messageAt   = 0x200
	padAt       = 0x300
)

// staticProgram returns a program that passes its probes app:tick, of which there are two, and app:always 50 times. While the semaphore of app:tick
// is 0 it skips app:tick. It exits with the semaphore's value. With an argument it first writes to the page of its data, and waits. always is the file offset
// of app:always.
func staticProgram(t *testing.T) (file []byte, always uint64) {
	t.Helper()
	a := x86.NewAsm(uint64(staticText))
	system := func(number, di, si, dx x86.Arg) {
		a.Mov(8, x86.RDI, di)
		a.Mov(8, x86.RSI, si)
		a.Mov(8, x86.RDX, dx)
		a.Mov(8, x86.RAX, number)
		a.Syscall()
	}
	var notes []byte
	mark := func(name string, semaphore uint64, args string) (off uint64) {
		var desc []byte
		for _, v := range []uint64{uint64(staticText) + uint64(a.Len()), 0, semaphore} {
			desc = binary.LittleEndian.AppendUint64(desc, v)
		}
		desc = append(desc, "app\x00"+name+"\x00"+args+"\x00"...)
		for _, v := range []int{8, len(desc), 3} {
			notes = binary.LittleEndian.AppendUint32(notes, uint32(v))
		}
		notes = append(append(notes, "stapsdt\x00"...), desc...)
		notes = append(notes, make([]byte, -len(desc)&3)...)
		off = uint64(staticText%guest.PageSize) + uint64(a.Len())
		a.Nop()
		return off
	}
	loop, again, skip := a.NewLabel(), a.NewLabel(), a.NewLabel()
	semaphore := x86.At(x86.R15, semaphoreAt)
	a.Mov(8, x86.R12, x86.At(x86.RSP, 0))
	a.Mov(8, x86.R15, x86.Imm(int64(staticData)))
	a.Cmp(8, x86.R12, x86.Imm(1))
	a.Jcc(x86.CondE, loop)
	a.Mov(1, x86.At(x86.R15, padAt), x86.Imm(1))
	system(x86.Imm(1), x86.Imm(1), x86.Imm(int64(staticData)+messageAt), x86.Imm(5)) // write
	a.Sub(8, x86.RSP, x86.Imm(64))
	system(x86.Imm(0), x86.Imm(0), x86.RSP, x86.Imm(64)) // read
	a.Place(loop)
	a.Mov(8, x86.RBX, x86.Imm(rounds))
	a.Place(again)
	a.Xor(4, x86.RAX, x86.RAX)
	a.Mov(2, x86.RAX, semaphore)
	a.Cmp(8, x86.RAX, x86.Imm(0))
	a.Jcc(x86.CondE, skip)
	a.Mov(8, x86.RDI, x86.RBX)
	a.Xor(8, x86.RSI, x86.RSI)
	a.Sub(8, x86.RSI, x86.RBX)
	a.Push(x86.RBX)
	const at = uint64(staticData) + semaphoreAt
	mark("tick", at, "8@%rdi -4@%esi 8@(%rsp) -4@264(%r15) -2@$-7 1@%bl")
	a.Pop(x86.RDX)
	mark("tick", at, "8@%rdx -8@%rsi 8@$1000000 -4@264(%r15) -2@$-7 1@%bl")
	a.Place(skip)
	a.Mov(8, x86.RCX, x86.Imm(2))
	always = mark("always", 0, "-4@%ebx -4@256(%r15,%rcx,4)")
	a.Dec(8, x86.RBX)
	a.Jcc(x86.CondNE, again)
	a.Xor(4, x86.RDI, x86.RDI)
	a.Mov(2, x86.RDI, semaphore)
	a.Mov(8, x86.RAX, x86.Imm(60)) // exit
	a.Syscall()
	a.Append(make([]byte, staticBytes-int(staticText%guest.PageSize)-a.Len()))
	code, err := a.Link()
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, guest.PageSize)
	binary.LittleEndian.PutUint32(data[tableAt+8:], 0xfffffffd) // -3
	copy(data[messageAt:], "WAIT\n")
	f := elfbuild.File{
		Entry: staticText,
		Segments: []elfbuild.Segment{
			{Section: ".text", VAddr: staticText, Flags: elf.PF_R | elf.PF_X, Data: code},
			{Section: ".data", VAddr: staticData, Flags: elf.PF_R | elf.PF_W, Data: data},
		},
		Extra: []elfbuild.Extra{{Name: ".note.stapsdt", Data: notes}},
	}
	return f.Bytes(), always
}

// TestStaticProbes attaches scripts and definitions to a program's statically defined probes. They must see each pass with its arguments. The semaphore must have the same value as with
// the kernel's own uprobes: in processes that have a private copy of the page, in others, and in processes that run when the probes are detached.
func TestStaticProbes(t *testing.T) {
	for _, dir := range kvmtest.RequireLinux(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			prog, always := staticProgram(t)
			var k *linux.Kernel
			g := boot(t, dir, "sh /usdt.sh", func(c *machine.Config) {
				c.VCPUs = 2
				var err error
				if c.Linux.Initrd, err = AddFiles(c.Linux.Initrd, fstest.MapFS{"app": {Data: prog}}); err != nil {
					t.Fatal(err)
				}
				k = c.Linux.Kernel
			})
			s := g.newSession(k)
			if err := g.Resume(); err != nil {
				t.Fatal(err)
			}
			rc := func(what, want string) {
				t.Helper()
				if got := g.await("RC "); got != want {
					t.Errorf("%s: the semaphore is %s, want %s", what, got, want)
				}
			}
			sum := g.await("SUM ")
			g.await("READY")
			g.Type("go\n")
			rc("before", "0")
			g.Type("go\n")
			g.await("WAIT") // it has a private copy of its data's page
			sc, err := s.StartScript(`usdt:/app:app:tick { @n = count(); @a = sum(arg0); @b = sum((int64)arg1); @c = sum(arg2); @d = sum((int64)arg3); @e = sum((int64)arg4); @f = sum(arg5); }
				usdt:/app:always { @always = sum(arg0); @indexed = sum((int64)arg1); @[probe] = count(); }`, session.ScriptOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if cached, own := g.savedSemaphores(t); !slices.Equal(cached, []uint16{0}) || !slices.Equal(own, []uint16{0}) {
				t.Errorf("a snapshot has semaphores %d in the page cache and %d in a process's own page, want 0 in each: it has nothing of ours", cached, own)
			}
			g.Type("go\n")
			rc("a page that it had for itself, also after a save", "2")
			for range 3 {
				g.Type("go\n")
				rc("a process that begins, also after a save", "2")
				if cached, _ := g.savedSemaphores(t); !slices.Equal(cached, []uint16{0}) {
					t.Errorf("a snapshot has semaphores %d in the page cache, want 0: it has nothing of ours", cached)
				}
			}
			g.Type("go\n")
			g.await("WAIT") // its own page is a copy of the page cache's
			var out strings.Builder
			if err := sc.Stop(&out); err != nil {
				t.Error(err)
			}
			const runs, passes = 4, 4 * rounds
			const half = rounds * (rounds + 1) / 2
			for _, line := range []string{
				fmt.Sprintf("@n: %d\n", 2*passes), fmt.Sprintf("@a: %d\n", 2*runs*half), fmt.Sprintf("@b: %d\n", -2*runs*half), fmt.Sprintf("@c: %d\n", runs*half+passes*1000000),
				fmt.Sprintf("@d: %d\n", -3*2*passes), fmt.Sprintf("@e: %d\n", -7*2*passes), fmt.Sprintf("@f: %d\n", 2*runs*half),
				fmt.Sprintf("@always: %d\n", runs*half), fmt.Sprintf("@indexed: %d\n", -3*passes), fmt.Sprintf("@[usdt:/app:app:always]: %d\n", passes),
			} {
				if !strings.Contains(out.String(), line) {
					t.Errorf("the script said %q, which has no %q", out.String(), line)
				}
			}
			g.Type("go\n")
			rc("a process that was there when the probes went", "0")
			g.Type("go\n")
			rc("after", "0")

			object, err := os.ReadFile("../../../probe/bpf/testdata/obj/usdt.o")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.AttachObject(session.ObjectSpec{File: object}); err != nil {
				t.Fatal(err)
			}
			g.Type("go\n")
			rc("an object", "2")
			var sums []int64
			if err := s.ReadMap("sums", func(_ session.MapInfo, m *bpf.Map) error {
				m.Walk(func(_ []byte, vals [][]byte) bool {
					sums = append(sums, int64(binary.LittleEndian.Uint64(vals[0])))
					return true
				})
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			if want := []int64{2 * half, -2 * half, half + rounds*1000000, 6 * 2 * rounds, 2 * rounds, 2 * rounds, 0, 0}; !slices.Equal(sums, want) {
				t.Errorf("an object's sums are %d, want %d", sums, want)
			}
			if _, err := s.Detach(); err != nil {
				t.Error(err)
			}

			// A definition gives the semaphore as in uprobe_events. A disabled probe does not count.
			def := fmt.Sprintf("p:e /app:%#x(%#x) i=%%bx:s32", always, staticBytes+semaphoreAt)
			if _, err := s.Attach([]session.Spec{{Def: def}}, nil); err != nil {
				t.Fatal(err)
			}
			for text, want := range map[string]string{
				fmt.Sprintf("p /app:%#x(%#x)", always, staticBytes+padAt):       "another semaphore",
				fmt.Sprintf("p /app:%#x(%#x)", always, staticBytes-2):           "there is no semaphore",
				fmt.Sprintf("p /app:%#x(%#x)", always, staticBytes+semaphoreAt): "",
			} {
				if _, err := s.Attach([]session.Spec{{Def: text}}, nil); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
					t.Errorf("%s: %v, want %q", text, err, want)
				}
			}
			g.Type("go\n")
			rc("two probes of an instruction", "1")
			if _, err := s.SetEnabled(false); err != nil {
				t.Error(err)
			}
			g.Type("go\n")
			rc("disabled probes", "0")
			if _, err := s.SetEnabled(true); err != nil {
				t.Error(err)
			}
			if err := s.SetArmed(false); err != nil {
				t.Error(err)
			}
			if err := s.SetArmed(true); err != nil {
				t.Error(err)
			}
			g.Type("go\n")
			rc("enabled probes", "1")
			if _, err := s.Detach(); err != nil {
				t.Error(err)
			}
			g.Type("go\n")
			if now := g.await("SUM "); now != sum {
				t.Errorf("the file has sum %s, before %s", now, sum)
			}
		})
	}
}

// savedSemaphores returns the values of the program's semaphore in a snapshot of the guest: in the page cache's page, and in those to which a process has written.
// Pages of a process that has ended are among the latter until the kernel uses them again.
func (g *Guest) savedSemaphores(t *testing.T) (cached, own []uint16) {
	t.Helper()
	snap, err := g.Save(nil)
	if err != nil {
		t.Fatal(err)
	}
	message := []byte("WAIT\n")
	for _, r := range snap.Memory {
		for at := 0; ; at += len(message) {
			k := bytes.Index(r.Bytes[at:], message)
			if k < 0 {
				break
			}
			at += k
			page := at - messageAt
			if (int(r.At)+at)%guest.PageSize != messageAt || page < 0 || page+guest.PageSize > len(r.Bytes) {
				continue
			}
			if n := binary.LittleEndian.Uint16(r.Bytes[page+semaphoreAt:]); r.Bytes[page+padAt] == 0 {
				cached = append(cached, n)
			} else {
				own = append(own, n)
			}
		}
	}
	return cached, own
}
