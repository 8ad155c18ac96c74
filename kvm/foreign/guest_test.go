package foreign

import (
	"context"
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
)

const repo = "../.."

// addresses are those of the guest's symbols.
func addresses(t *testing.T) map[string]uint64 {
	f, err := elf.Open(filepath.Join(repo, "testdata/guests/multiboot.elf"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	syms, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]uint64{}
	for _, s := range syms {
		out[s.Name] = s.Value
	}
	return out
}

// openQEMU opens the guest of a QEMU, once the VM has that many vCPUs.
func openQEMU(t *testing.T, q *kvmtest.QEMU, cpus int) *Guest {
	t.Helper()
	for {
		p, err := Find(strconv.Itoa(q.PID))
		if err == nil && len(p.VCPUs) == cpus && q.QMP == p.QMP {
			var g *Guest
			if g, err = Open(p); err == nil {
				t.Cleanup(func() {
					if err := g.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
						t.Errorf("Close: %v", err)
					}
				})
				return g
			}
		}
		if c := CodeOf(err); c != CodeNoVM && err != nil && (q.QMP == "" || c == CodeNoPermission) && os.Geteuid() == 0 {
			t.Fatal(err)
		}
		select {
		case <-q.Ended:
			t.Fatalf("QEMU has ended: %v", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// countCalls returns the guest's count of calls, in a stop, with the registers of its first vCPU; 0 if that has not run yet.
func countCalls(t *testing.T, g *Guest, at uint64) (n uint64, c CPU) {
	t.Helper()
	err := g.Stop(t.Context(), func(cpus []CPU) error {
		if c = cpus[0]; !c.Known {
			return nil
		}
		b, err := g.Memory().Slice(guest.GPA(at), 8)
		if errors.Is(err, guest.ErrNoMemory) {
			return nil // the firmware runs, and QEMU is about to replace a slot: no calls yet
		}
		if err == nil {
			n = binary.LittleEndian.Uint64(b)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n, c
}

// TestGuests: registers and memory of a QEMU's guest, both ways, with one vCPU and with two of which the second never starts.
func TestGuests(t *testing.T) {
	at := addresses(t)
	for _, way := range []Way{Cooperative, Outside} {
		for _, cpus := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s/%d", way, cpus), func(t *testing.T) {
				q := kvmtest.StartQEMU(t, repo, "guests", way == Cooperative, "-smp", strconv.Itoa(cpus))
				if way == Outside {
					kvmtest.RequireRoot(t)
				}
				g := openQEMU(t, q, cpus)
				if g.Way != way || g.VCPUs() != cpus {
					t.Fatalf("reached by %s, %d vCPUs; want %s, %d", g.Way, g.VCPUs(), way, cpus)
				}
				seen := map[uint64]bool{}
				last := uint64(0)
				for len(seen) < 3 { // three different counts: the guest runs on after each stop
					n, c := countCalls(t, g, at["calls"])
					if n < last {
						t.Fatalf("%d calls after %d", n, last)
					}
					if n > 0 {
						seen[n] = true
					}
					last = n
					if n == 0 {
						continue // it boots
					}
					if c.Sregs.CS.Selector != 0x1b || c.Sregs.CR3 != at["pml4"] || c.Sregs.EFER&eferLMA == 0 || c.Regs.RBX != 0x1111 {
						t.Errorf("cs %#x cr3 %#x efer %#x rbx %#x; want 0x1b, %#x, LMA, 0x1111", c.Sregs.CS.Selector, c.Sregs.CR3, c.Sregs.EFER, c.Regs.RBX, at["pml4"])
					}
					if c.Regs.RIP < at["outer"] || c.Regs.RIP >= at["hot"]+64 {
						t.Errorf("rip %#x is not in the guest's code", c.Regs.RIP)
					}
					as := guest.NewAddressSpace(g.Memory(), guest.GPA(c.Sregs.CR3))
					var frame [16]byte
					if err := as.Read(guest.GVA(c.Regs.RSP), frame[:]); err != nil {
						t.Errorf("stack: %v", err)
					}
				}
				// While vCPUs are stopped nothing is counted.
				err := g.Stop(t.Context(), func([]CPU) error {
					read := func() uint64 {
						switch b := g.back.(type) { // read it again
						case *outside:
							b.mem.drop()
						case *qmp:
							b.mem.drop()
						}
						b, err := g.Memory().Slice(guest.GPA(at["calls"]), 8)
						if err != nil {
							t.Fatal(err)
						}
						return binary.LittleEndian.Uint64(b)
					}
					a := read()
					time.Sleep(50 * time.Millisecond)
					if b := read(); a != b {
						t.Errorf("%d calls, and %d later: the guest ran in the stop", a, b)
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
				if _, err := g.FindLinux(nil); CodeOf(err) != CodeNotLinux {
					t.Errorf("FindLinux: %v; want %s", err, CodeNotLinux)
				}
			})
		}
	}
}

// monitor sends QMP commands to a QEMU.
func monitor(t *testing.T, path string, commands ...string) {
	t.Helper()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	in := json.NewDecoder(conn)
	answer := func(key string) {
		for {
			var m map[string]json.RawMessage
			if err := in.Decode(&m); err != nil {
				t.Fatal(err)
			}
			if _, ok := m[key]; ok {
				return
			}
		}
	}
	answer("QMP")
	for _, c := range append([]string{"qmp_capabilities"}, commands...) {
		fmt.Fprintf(conn, "{%q: %q}\n", "execute", c)
		answer("return")
	}
}

// TestPaused: a guest that its VMM has paused is left paused. By QMP it is read, from outside it is refused by name.
func TestPaused(t *testing.T) {
	at := addresses(t)
	q := kvmtest.StartQEMU(t, repo, "paused", true)
	g := openQEMU(t, q, 1)
	for n := uint64(0); n == 0; {
		n, _ = countCalls(t, g, at["calls"])
	}
	if err := g.Close(); err != nil { // one client at a time
		t.Fatal(err)
	}
	monitor(t, q.QMP, "stop")
	p, err := Find(strconv.Itoa(q.PID))
	if err != nil {
		t.Fatal(err)
	}
	g, err = Open(p)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	a, _ := countCalls(t, g, at["calls"])
	b, _ := countCalls(t, g, at["calls"])
	if a != b || a == 0 {
		t.Errorf("%d calls, and then %d: the guest was resumed", a, b)
	}
	if os.Geteuid() != 0 {
		return
	}
	p.QMP = ""
	if s := Survey(t.Context(), p); CodeOf(s.Err) != CodePaused {
		t.Errorf("from outside: %v; want %s", s.Err, CodePaused)
	}
}

// TestGone: a VMM that is killed in a stop, and one that is gone.
func TestGone(t *testing.T) {
	kvmtest.RequireRoot(t)
	q := kvmtest.StartQEMU(t, repo, "gone", false)
	g := openQEMU(t, q, 1)
	err := g.Stop(t.Context(), func([]CPU) error { return syscall.Kill(q.PID, syscall.SIGKILL) })
	if err != nil && CodeOf(err) != CodeGone {
		t.Errorf("killed in a stop: %v", err)
	}
	for {
		err := g.Stop(t.Context(), func([]CPU) error { return nil })
		if CodeOf(err) == CodeGone {
			break
		}
		if err != nil {
			t.Fatalf("after the end: %v; want %s", err, CodeGone)
		}
	}
	if _, err := Find(strconv.Itoa(q.PID)); CodeOf(err) != CodeNoVM {
		t.Errorf("Find: %v; want %s", err, CodeNoVM)
	}
}

// TestKilled: the process that looks is killed at any moment, and the guest runs on.
func TestKilled(t *testing.T) {
	if pid := os.Getenv("FOREIGN_LOOK"); pid != "" { // the process that is killed
		p, err := Find(pid)
		if err == nil {
			var g *Guest
			if g, err = Open(p); err == nil {
				fmt.Println("open")
				for err == nil {
					err = g.Stop(context.Background(), func([]CPU) error { return nil })
				}
			}
		}
		fmt.Println(err)
		os.Exit(3)
	}
	for _, way := range []Way{Outside, Cooperative} {
		t.Run(string(way), func(t *testing.T) { testKilled(t, way) })
	}
}

func testKilled(t *testing.T, way Way) {
	if way == Outside {
		kvmtest.RequireRoot(t)
	}
	at := addresses(t)
	q := kvmtest.StartQEMU(t, repo, "killed", way == Cooperative, "-smp", "2")
	calls := func() uint64 { // by a process of its own, because a QEMU has one client
		g := openQEMU(t, q, 2)
		defer g.Close()
		n, _ := countCalls(t, g, at["calls"])
		return n
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for i := range kvmtest.ChooseSize(20, 300) {
		before := calls()
		cmd := exec.Command(exe, "-test.run=^TestKilled$")
		cmd.Env = append(os.Environ(), "FOREIGN_LOOK="+strconv.Itoa(q.PID))
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		line := make([]byte, 5)
		if _, err := io.ReadFull(out, line); err != nil || string(line) != "open\n" {
			rest, _ := io.ReadAll(out)
			t.Fatalf("the process that looks: %q %v", string(line)+string(rest), err)
		}
		time.Sleep(time.Duration(i*37%5000) * time.Microsecond)
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); cmd.ProcessState.ExitCode() != -1 {
			t.Fatalf("it ended by itself: %v", err)
		}
		for n := before; n == before; { // it counts on
			n = calls()
		}
	}
	if err := syscall.Kill(q.PID, 0); err != nil {
		t.Errorf("the VMM is gone: %v", err)
	}
}

// TestSocketInUse: a QMP socket that another client has, or that another process serves, is not waited for, and the other way is
// taken.
func TestSocketInUse(t *testing.T) {
	q := kvmtest.StartQEMU(t, repo, "taken", true)
	openQEMU(t, q, 1).Close()
	conn, err := net.Dial("unix", q.QMP)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	p, err := Find(strconv.Itoa(q.PID))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openQMP(p.PID, p.QMP); CodeOf(err) != CodeBusy {
		t.Errorf("another client: %v; want %s", err, CodeBusy)
	}
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "fake"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if _, err := openQMP(p.PID, listener.Addr().String()); CodeOf(err) != CodeNoVM {
		t.Errorf("another process's socket: %v; want %s", err, CodeNoVM)
	}
	if os.Geteuid() != 0 {
		return
	}
	g, err := Open(p)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if g.Way != Outside || CodeOf(g.NoQMP) != CodeBusy {
		t.Errorf("reached by %s, without QMP because of %v", g.Way, g.NoQMP)
	}
}

// TestFakeQEMU: answers of a QEMU that is none end in an error, soon.
func TestFakeQEMU(t *testing.T) {
	const greeting = `{"QMP": {}}` + "\n" + `{"return": {}}` + "\n"
	for name, answers := range map[string]string{
		"nothing":             "",
		"garbage":             "\x00\x01garbage\n",
		"no JSON":             greeting + "x\n",
		"wrong types":         greeting + `{"return": 7}` + "\n",
		"null":                greeting + "null\nnull\n",
		"no memory":           greeting + `{"return": [{}]}` + "\n" + `{"return": []}` + "\n",
		"a device":            greeting + `{"return": [{}]}` + "\n" + `{"return": [{"id": "m", "size": 4096, "share": true}]}` + "\n" + `{"return": "/dev/zero"}` + "\n",
		"many devices":        greeting + `{"return": [{}]}` + "\n" + `{"return": [` + strings.TrimSuffix(strings.Repeat(`{"id": "m", "size": 4096, "share": true},`, 1000), ",") + `]}` + "\n" + strings.Repeat(`{"return": "/dev/zero"}`+"\n", 1000),
		"a line that is long": "{" + strings.Repeat("x", maxAnswer+1),
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "q")
			listener, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
			served := make(chan struct{})
			go func() {
				defer close(served)
				if conn, err := listener.Accept(); err == nil {
					_, _ = io.WriteString(conn, answers)
					_ = conn.(*net.UnixConn).CloseWrite()
					_, _ = io.Copy(io.Discard, conn)
					conn.Close()
				}
			}()
			if q, err := openQMP(os.Getpid(), path); err == nil {
				q.close()
				t.Error("it was opened")
			} else if CodeOf(err) == "" {
				t.Errorf("%v has no code", err)
			}
			<-served
		})
	}
}

// TestTwoObservers: the end of one does not leave the other with old registers.
func TestTwoObservers(t *testing.T) {
	kvmtest.RequireRoot(t)
	at := addresses(t)
	q := kvmtest.StartQEMU(t, repo, "observed", false)
	a := openQEMU(t, q, 1)
	for n := uint64(0); n == 0; {
		n, _ = countCalls(t, a, at["calls"])
	}
	b, err := Open(a.Process)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	countCalls(t, b, at["calls"])
	if err := a.Close(); err != nil { // it has asked for registers first, and withdraws that
		t.Fatal(err)
	}
	seen := map[uint64]bool{} // values of the counter of hot's loop
	for len(seen) < 4 {
		_, c := countCalls(t, b, at["calls"])
		seen[c.Regs.RCX] = true
	}
}

// TestManyObservers: several that stop two vCPUs at the same moments wait for each other, and no vCPU stays stopped.
func TestManyObservers(t *testing.T) {
	kvmtest.RequireRoot(t)
	at := addresses(t)
	q := kvmtest.StartQEMU(t, repo, "crowd", false, "-smp", "2")
	first := openQEMU(t, q, 2)
	for n := uint64(0); n == 0; {
		n, _ = countCalls(t, first, at["calls"])
	}
	var all sync.WaitGroup
	for range 4 {
		g, err := Open(first.Process)
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		all.Go(func() {
			for range 100 {
				if err := g.Stop(t.Context(), func([]CPU) error { return nil }); err != nil && CodeOf(err) != CodeBusy {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	before, _ := countCalls(t, first, at["calls"])
	for n := before; n == before; {
		n, _ = countCalls(t, first, at["calls"])
	}
}

// TestSecondHeld: the first vCPU's thread is interrupted, and the second's cannot be: the first is released, whether or not it has
// stopped by then.
func TestSecondHeld(t *testing.T) {
	kvmtest.RequireRoot(t)
	at := addresses(t)
	q := kvmtest.StartQEMU(t, repo, "second", false, "-smp", "2")
	g := openQEMU(t, q, 2)
	o := g.back.(*outside)
	var tid int
	for n := uint64(0); n == 0 || tid == 0; {
		n, _ = countCalls(t, g, at["calls"])
		threads, err := o.threads()
		if err != nil {
			t.Fatal(err)
		}
		tid = threads[1]
	}
	seized, release, done := make(chan error), make(chan struct{}), make(chan error)
	go func() {
		runtime.LockOSThread()
		seized <- seize(tid)
		<-release
		done <- errors.Join(awaitStop(tid), detach(tid))
	}()
	if err := <-seized; err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread()
	for range 300 {
		if _, err := o.stopOnce(true, func([]CPU) error { return nil }); CodeOf(err) != CodeBusy {
			t.Errorf("%v; want %s", err, CodeBusy)
		}
	}
	runtime.UnlockOSThread()
	close(release)
	if err := <-done; err != nil {
		t.Error(err)
	}
	before, _ := countCalls(t, g, at["calls"])
	for n := before; n == before; {
		n, _ = countCalls(t, g, at["calls"])
	}
}

// TestTraced: a VMM that a debugger traces is refused by name, and is not waited for.
func TestTraced(t *testing.T) {
	kvmtest.RequireRoot(t)
	q := kvmtest.StartQEMU(t, repo, "traced", false)
	g := openQEMU(t, q, 1)
	for at, n := addresses(t), uint64(0); n == 0; { // its vCPU has a thread
		n, _ = countCalls(t, g, at["calls"])
	}
	tid, err := g.back.(*outside).kernel.thread(g.back.(*outside).cpus[0].object, g.back.(*outside).vm)
	if err != nil {
		t.Fatal(err)
	}
	seized, release, done := make(chan error), make(chan struct{}), make(chan error)
	go func() { // tracers are threads, so that another one of this process will do
		runtime.LockOSThread()
		seized <- seize(tid)
		<-release
		done <- errors.Join(awaitStop(tid), detach(tid))
	}()
	if err := <-seized; err != nil {
		t.Fatal(err)
	}
	err = g.Stop(t.Context(), func([]CPU) error { return nil })
	close(release)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if CodeOf(err) != CodeBusy {
		t.Errorf("traced by another: %v; want %s", err, CodeBusy)
	}
	var e *Error
	if !errors.As(err, &e) || e.Unwrap() == nil {
		t.Errorf("%v has no cause", err)
	}
}
