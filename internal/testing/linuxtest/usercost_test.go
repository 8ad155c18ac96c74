package linuxtest

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/elfbuild"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/internal/testing/sessiontest"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe/session"
)

// callerCalls is how often the program of caller calls its function work.
const callerCalls = 1000

// caller returns a program, as an ELF file, that calls its function work and exits, with 0 if that has always returned the right
// result. load, store and step are the offsets in work of a load, a store, and an instruction that the engine does not emulate.
func caller(t *testing.T) (file []byte, load, store, step uint64) {
	t.Helper()
	const at = guest.GVA(0x400078) // behind the headers, which the same page has
	a := x86.NewAsm(uint64(at))
	work, again, right := a.NewLabel(), a.NewLabel(), a.NewLabel()
	a.Xor(4, x86.R13, x86.R13) // what went wrong
	a.Mov(8, x86.RBX, x86.Imm(callerCalls))
	a.Place(again)
	a.Mov(8, x86.RDI, x86.RBX)
	a.Call(work)
	a.Lea(8, x86.RCX, x86.AtIndex(x86.RBX, x86.RBX, 2, 0))
	a.Cmp(8, x86.RAX, x86.RCX)
	a.Jcc(x86.CondE, right)
	a.Mov(4, x86.R13, x86.Imm(1))
	a.Place(right)
	a.Dec(8, x86.RBX)
	a.Jcc(x86.CondNE, again)
	a.Mov(8, x86.RDI, x86.R13)
	a.Mov(8, x86.RAX, x86.Imm(60)) // exit
	a.Syscall()
	a.Place(work)
	begin := uint64(a.Len())
	a.Mov(8, x86.RAX, x86.RDI)
	a.Mov(8, x86.RCX, x86.At(x86.RSP, 0))
	load = uint64(a.Len()) - begin
	a.Sub(8, x86.RCX, x86.At(x86.RSP, 0)) // 0
	a.Add(8, x86.RAX, x86.RCX)
	store = uint64(a.Len()) - begin
	a.Mov(8, x86.At(x86.RSP, -8), x86.RAX)
	a.Xor(4, x86.RAX, x86.RAX)
	a.Mov(8, x86.RAX, x86.At(x86.RSP, -8))
	step = uint64(a.Len()) - begin
	a.ImulImm(8, x86.RAX, x86.RAX, 3)
	a.Ret()
	end := uint64(a.Len())
	code, err := a.Link()
	if err != nil {
		t.Fatal(err)
	}
	f := elfbuild.File{
		Entry:    at,
		Segments: []elfbuild.Segment{{Section: ".text", VAddr: at, Flags: elf.PF_R | elf.PF_X, Data: code}},
		Symbols:  []elfbuild.Symbol{{Name: "work", Addr: at + guest.GVA(begin), Size: end - begin, Type: elf.STT_FUNC}},
	}
	return f.Bytes(), load, store, step
}

// TestUserCost says what a hit in a program costs, beside the guest kernel's own uprobe, as lines of the table of scripts/bench-linux.sh.
func TestUserCost(t *testing.T) {
	for _, dir := range kvmtest.RequireLinux(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) { userCost(t, dir) })
	}
}

func userCost(t *testing.T, dir string) {
	prog, load, store, step := caller(t)
	l := bootLoads(t, dir, 1, func(c *machine.Config) {
		var err error
		if c.Linux.Initrd, err = AddFiles(c.Linux.Initrd, fstest.MapFS{"caller": {Data: prog}}); err != nil {
			t.Fatal(err)
		}
	})
	hostUserCost(t, prog)
	base := l.runs()
	costRow("a call of a program's function, not probed", base[0], base, "-", "-")

	if answer := l.ask("add own uprobe /caller work"); answer != "ok" {
		t.Fatal(answer)
	}
	all := l.runs()
	if answer, want := l.ask("read"), fmt.Sprint("own=", costTimes*callerCalls); answer != want {
		t.Errorf("the kernel's uprobe: %s, want %s", answer, want)
	}
	l.ask("del own")
	kernel := costRow("the kernel's own uprobe with a BPF program that counts", base[0], all, "-", "-")

	for _, c := range []struct{ what, script, want string }{
		{"a script that counts (emulated)", "uprobe:/caller:work { @ = count(); }", fmt.Sprintf("@: %d\n", costTimes*callerCalls)},
		{"a script with a filter that rejects", "uprobe:/caller:work /arg0 == 0/ { @ = count(); }", ""},
		{"a script that counts (at a load, emulated)", fmt.Sprintf("uprobe:/caller:work+%d { @ = count(); }", load), fmt.Sprintf("@: %d\n", costTimes*callerCalls)},
		{"a script that counts (at a store, emulated)", fmt.Sprintf("uprobe:/caller:work+%d { @ = count(); }", store), fmt.Sprintf("@: %d\n", costTimes*callerCalls)},
		{"a script that counts (stepped in its place)", fmt.Sprintf("uprobe:/caller:work+%d { @ = count(); }", step), fmt.Sprintf("@: %d\n", costTimes*callerCalls)},
	} {
		x := sessiontest.Start(t, l.s, c.script, session.ScriptOptions{})
		before := l.exits()
		all := l.runs()
		exits := float64(l.exits()-before) / (costTimes * callerCalls)
		out, _, _ := x.End()
		if !strings.Contains(out, c.want) || c.want == "" && strings.Contains(out, "@: ") {
			t.Errorf("%s: %q, want %q", c.what, out, c.want)
		}
		added := median(all) - base[0]
		costRow(c.what, base[0], all, fmt.Sprintf("%.2f", exits), fmt.Sprintf("%.2f", added/kernel))
	}
}

// hostUserCost says what the host kernel's own uprobe costs: that of a guest's kernel costs exits, because its int3s are reported
// to the host.
func hostUserCost(t *testing.T, prog []byte) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "caller")
	if err := os.WriteFile(path, prog, 0o755); err != nil {
		t.Fatal(err)
	}
	runs := func() (all []float64) {
		for range costTimes {
			n, err := runProgram(path)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, float64(n)/callerCalls)
		}
		slices.Sort(all)
		return all
	}
	base := runs()
	own, err := addProgram("uprobe", []string{path, "work"})
	if err != nil {
		t.Logf("the host's own uprobe was not measured: %v", err)
		return
	}
	defer own.close()
	costRow("a call of a program's function in no guest, not probed", base[0], base, "-", "-")
	all := runs()
	if n, err := own.count(); err != nil || n != costTimes*callerCalls {
		t.Errorf("the host's own uprobe: %d, %v", n, err)
	}
	costRow("the kernel's own uprobe with a BPF program that counts, in no guest", base[0], all, "-", "-")
}

// runs returns what a call of the function of caller costs, several times, ascending.
func (l *loads) runs() (all []float64) {
	l.t.Helper()
	for range costTimes {
		n, err := strconv.Atoi(l.ask("run /caller"))
		if err != nil {
			l.t.Fatal(err)
		}
		all = append(all, float64(n)/callerCalls)
	}
	slices.Sort(all)
	return all
}

// runProgram runs a program, and returns how many nanoseconds of the guest's clock that has taken.
func runProgram(path string) (int64, error) {
	began := nanoseconds()
	err := exec.Command(path).Run()
	return nanoseconds() - began, err
}
