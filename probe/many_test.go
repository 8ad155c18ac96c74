package probe_test

import (
	"fmt"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/probe"
)

// readFunctions is an image that counts how often all bytes of a function are read.
type readFunctions struct {
	*guest.Image
	read map[guest.GVA]int
}

// Code implements probe.Symbols.
func (c *readFunctions) Code(addr guest.GVA, n int) []byte {
	if s, ok := c.Find(addr); ok && s.Addr == addr && uint64(n) >= s.Size {
		c.read[addr]++
	}
	return c.Image.Code(addr, n)
}

// TestAnalyzedOnce: a request that checks each of many places and then registers all of them
// analyzes each function once. Of the analyses themselves few are cached.
func TestAnalyzedOnce(t *testing.T) {
	const n = 1000
	img := loopImage(t, n)
	count := &readFunctions{Image: img, read: map[guest.GVA]int{}}
	f, err := probetest.NewFake(probetest.FakeOptions{Image: img, Symbols: func(*guest.Image) probe.Symbols { return count }, Probe: probe.Options{OptimizeDelay: -1}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	e := f.Engine()
	ps := make([]*probe.Kprobe, n)
	for i := range ps {
		ps[i] = &probe.Kprobe{Symbol: fmt.Sprintf("f%d", i), Pre: emptyHandler}
		if _, err := e.Check(ps[i]); err != nil {
			t.Fatal(err)
		}
	}
	checked := total(count.read)
	if err := e.Register(probe.Probes(ps)...); err != nil {
		t.Fatal(err)
	}
	if more := total(count.read) - checked; more != 0 {
		t.Errorf("%d functions were read again for %d probes that had been checked", more, n)
	}
	if err := e.Unregister(ps...); err != nil {
		t.Fatal(err)
	}
	checked = total(count.read)
	for _, p := range ps {
		p.Addr = 0
	}
	if err := e.Register(probe.Probes(ps)...); err != nil {
		t.Fatal(err)
	}
	if more := total(count.read) - checked; more < n/2 {
		t.Errorf("a later registration trusts what was known before: it read %d functions, want most of %d", more, n)
	}
}

// total returns the sum of the counts.
func total(counts map[guest.GVA]int) (n int) {
	for _, k := range counts {
		n += k
	}
	return n
}

// loopImage returns an image of n functions of 40 bytes.
func loopImage(t *testing.T, n int) *guest.Image {
	t.Helper()
	funcs := make([]probetest.Func, n)
	for i := range funcs {
		code := []byte("\x55\x48\x89\xe5\x53")
		for k := range 8 {
			code = append(code, 0x48, 0x8d, 0x47, byte(k))
		}
		funcs[i] = probetest.Func{Name: fmt.Sprintf("f%d", i), Code: append(code, "\x5b\x5d\xc3"...)}
	}
	img, err := probetest.BuildImage(textBase, false, funcs...)
	if err != nil {
		t.Fatal(err)
	}
	return img
}
