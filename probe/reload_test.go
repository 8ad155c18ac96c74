package probe_test

import (
	"bytes"
	"errors"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/probe"
)

// Functions of 16 bytes for images of the tests: a load and ret, a move and
// ret, a frame and ret.
var (
	loads = []byte("\x48\x8b\x07\xc3\xcc\xcc\xcc\xcc\xcc\xcc\xcc\xcc\xcc\xcc\xcc\xcc")
	moves = []byte("\x48\x89\xf8\xc3\xcc\xcc\xcc\xcc\xcc\xcc\xcc\xcc\xcc\xcc\xcc\xcc")
	frame = []byte("\x55\x5d\xc3\xcc\xcc\xcc\xcc\xcc\xcc\xcc\xcc\xcc\xcc\xcc\xcc\xcc")
)

func build(t *testing.T, funcs ...probetest.Func) *guest.Image {
	t.Helper()
	img, err := probetest.BuildImage(textBase, false, funcs...)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// TestReloadAlone: a probe that is registered while the guest is reset is attached
// after the reset. In between it would be put into text that the engine takes for
// untouched.
func TestReloadAlone(t *testing.T) {
	a, b := probetest.Func{Name: "a", Code: loads}, probetest.Func{Name: "b", Code: moves}
	f := newFake(t, 1, build(t, a, b))
	e := f.Engine()
	p := &probe.Kprobe{Symbol: "a"}
	second := build(t, b, a)
	registered := make(chan error)
	err := e.Reload(func(save func()) (bool, error) {
		err := f.Reboot(save, second)
		begun := make(chan struct{})
		go func() {
			close(begun)
			registered <- e.Register(p)
		}()
		<-begun
		for range 1000 {
			runtime.Gosched()
		}
		return true, err
	})
	if err := errors.Join(err, <-registered); err != nil {
		t.Fatal(err)
	}
	if i, _ := e.Info(p); i.Addr != textBase+16 || !i.Armed || i.Gone {
		t.Errorf("got %+v, want it armed at %v", i, guest.GVA(textBase+16))
	}
	failed := errors.New("no guest")
	if err := e.Reload(func(func()) (bool, error) { return false, failed }); err != failed {
		t.Errorf("got %v, want %v", err, failed)
	}
}

// looked is a kernel that counts the reads of the code at an address.
type looked struct {
	*probetest.Kernel
	at guest.GVA
	n  *int
}

func (l looked) Code(addr guest.GVA, n int) []byte {
	b := l.Kernel.Code(addr, n)
	if l.at-addr < guest.GVA(len(b)) {
		*l.n++
	}
	return b
}

// TestReloadKnows: the analysis of a kernel's whole code is reused after a reset if
// the code is the same, and repeated if it is different.
func TestReloadKnows(t *testing.T) {
	traced := []byte("\x0f\x1f\x44\x00\x00\x48\x8b\x07\xc3\xcc\xcc\xcc\xcc\xcc\xcc\xcc") // a probe on its entry needs to know which jumps lead past the nop
	a, b, c := probetest.Func{Name: "a", Code: traced}, probetest.Func{Name: "b", Code: moves}, probetest.Func{Name: "c", Code: frame}
	between := probetest.Func{Name: "between", Code: bytes.Repeat(moves, 30)}
	first, second := build(t, a, b, between, c), build(t, a, b, between, c, probetest.Func{Name: "d", Code: frame})
	n := 0
	f, err := probetest.NewFake(probetest.FakeOptions{Image: first, Probe: probe.Options{OptimizeDelay: -1}, Symbols: func(img *guest.Image) probe.Symbols {
		rewritten := []probetest.Rewritten{{Range: guest.Range{Start: textBase, End: textBase + 5}, Why: probetest.Ftrace}}
		return looked{&probetest.Kernel{Image: img, Rewritten: rewritten}, textBase + 32 + guest.GVA(len(between.Code)), &n} // of a function that is not probed, nor near it
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if err := f.Engine().Register(&probe.Kprobe{Symbol: "a"}); err != nil || n == 0 {
		t.Fatalf("%d times, %v", n, err)
	}
	for _, c := range []struct {
		what string
		img  *guest.Image
		look bool
	}{{"the same", first, false}, {"the same again", first, false}, {"another", second, true}, {"the first", first, true}} {
		n = 0
		if err := f.Engine().Reload(func(save func()) (bool, error) { return true, f.Reboot(save, c.img) }); err != nil {
			t.Fatal(err)
		}
		if err := f.Engine().Register(&probe.Kprobe{Symbol: "a"}); err != nil {
			t.Fatal(err)
		}
		if n > 0 != c.look {
			t.Errorf("%s: %d times", c.what, n)
		}
	}
}

// TestReset takes probes through resets: the same image, one in which a
// function has moved and another is missing, and back.
func TestReset(t *testing.T) {
	a, b, c := probetest.Func{Name: "a", Code: loads}, probetest.Func{Name: "b", Code: moves}, probetest.Func{Name: "c", Code: frame}
	first := build(t, a, b, c)
	second := build(t, b, a) // a and b have changed places, c is missing
	f := newFake(t, 1, first)
	e := f.Engine()
	post := func(*probe.Context) {}
	byName := &probe.Kprobe{Name: "by name", Symbol: "a", Post: post}
	older := &probe.Kprobe{Name: "older", Symbol: "a"}
	byAddr := &probe.Kprobe{Name: "by address", Addr: textBase + 16}
	missing := &probe.Kprobe{Name: "missing", Symbol: "c"}
	disabled := &probe.Kprobe{Name: "disabled", Symbol: "b", Disabled: true}
	all := []*probe.Kprobe{older, byName, byAddr, missing, disabled}
	if err := e.Register(probe.Probes(all)...); err != nil {
		t.Fatal(err)
	}
	reset := func(img *guest.Image) {
		t.Helper()
		if err := f.Reset(img); err != nil {
			t.Fatal(err)
		}
	}
	check := func(what string, p *probe.Kprobe, addr guest.GVA, armed, gone bool) {
		t.Helper()
		i, ok := e.Info(p)
		if !ok || i.Addr != addr || i.Armed != armed || i.Gone != gone || p.Addr != addr {
			t.Errorf("%s: %s: got %+v, want address %v, armed %v, gone %v", what, p.Name, i, addr, armed, gone)
		}
		var text [1]byte
		if err := f.Read(addr, text[:]); err != nil && !gone || (text[0] == 0xcc) != armed && !gone {
			t.Errorf("%s: %s: byte %#x, %v", what, p.Name, text[0], err)
		}
	}
	run := func(name string, arg uint64) {
		t.Helper()
		s, err := f.Symbol(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Call(0, s.Addr, arg); err != nil {
			t.Fatal(err)
		}
	}
	stack := uint64(0x7000_1000) // readable
	run("a", stack)

	reset(first)
	check("same image", byName, textBase, true, false)
	check("same image", older, textBase, true, false)
	check("same image", byAddr, textBase+16, true, false)
	check("same image", missing, textBase+32, true, false)
	if i, _ := e.Info(disabled); i.Gone || !i.Disabled {
		t.Errorf("disabled probe: %+v", i)
	}
	run("a", stack)
	if s, _, _ := e.Stats(byName); s.Hits != 2 || s.SecondExits != 2 {
		t.Errorf("counts after a reset: %+v, want 2 hits", s)
	}

	reset(second)
	check("other image", byName, textBase+16, true, false)
	check("other image", byAddr, textBase+16, false, true) // a load is there now
	check("other image", missing, textBase+32, false, true)
	run("a", stack)
	if s, _, _ := e.Stats(older); s.Hits != 3 {
		t.Errorf("hits where the function is now: %+v, want 3", s)
	}
	wantCode(t, e.Enable(missing), probe.CodeGone, syscall.EINVAL, nil)
	if err := e.Disable(byAddr); err != nil {
		t.Errorf("disable one that is gone: %v", err)
	}
	if err := e.Enable(byName); err != nil {
		t.Errorf("enable: %v", err)
	}
	names, lines := "", ""
	for _, i := range e.List() {
		names += i.Name + ","
		lines += i.String() + "\n"
	}
	if !strings.Contains(lines, "ffffffff81000020  k  c+0x0    [GONE]\n") {
		t.Errorf("list:\n%s", lines)
	}
	if want := "disabled,by name,older,by address,missing,"; names != want {
		t.Errorf("order: got %s, want %s", names, want)
	}
	// A new probe may go where a gone one was.
	fresh := &probe.Kprobe{Name: "fresh", Addr: textBase + 16}
	if err := e.Register(fresh); err != nil {
		t.Fatal(err)
	}

	reset(first)
	check("back", byName, textBase, true, false)
	check("back", missing, textBase+32, true, false)
	check("back", fresh, textBase+16, false, true)
	if i, _ := e.Info(byAddr); i.Gone || !i.Disabled {
		t.Errorf("by address: %+v, want disabled, not gone", i)
	}
	if err := e.Unregister(append(all, fresh)...); err != nil {
		t.Fatal(err)
	}
	if got := e.List(); len(got) != 0 {
		t.Errorf("left: %+v", got)
	}
}

// TestResetWhileDisarmed: a reset does not arm disarmed probes.
func TestResetWhileDisarmed(t *testing.T) {
	img := build(t, probetest.Func{Name: "a", Code: loads})
	f := newFake(t, 1, img)
	e := f.Engine()
	p := &probe.Kprobe{Symbol: "a"}
	if err := e.Register(p); err != nil {
		t.Fatal(err)
	}
	if err := e.DisarmAll(); err != nil {
		t.Fatal(err)
	}
	if err := f.Reset(img); err != nil {
		t.Fatal(err)
	}
	if i, _ := e.Info(p); i.Armed || i.Gone {
		t.Errorf("after the reset: %+v", i)
	}
	if err := e.ArmAll(); err != nil {
		t.Fatal(err)
	}
	if i, _ := e.Info(p); !i.Armed {
		t.Errorf("after arming: %+v", i)
	}
}
