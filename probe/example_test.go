package probe_test

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/probetest"
)

// A kprobe with a pre and a post handler on a function of a guest: here the
// fake one, so that the example runs anywhere. A real guest is used alike,
// with the engine that internal/machine has made for it.
func Example() {
	f, err := probetest.NewFake(probetest.FakeOptions{CPUs: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	e := f.Engine()
	p := &probe.Kprobe{
		Name:   "divide",
		Symbol: "kprobe_target", // v / 3
		Pre: func(c *probe.Context) int {
			fmt.Printf("pre: v = %d\n", c.Regs.RDI)
			c.Regs.RDI = 300 // handlers may change what the function sees
			return 0         // and now the instruction
		},
		Post: func(c *probe.Context) {
			fmt.Printf("post: eax = %d\n", c.Regs.RAX) // mov %edi, %eax was executed
		},
	}
	if err := e.Register(p); err != nil {
		fmt.Println(err)
		return
	}
	r, err := f.Call(0, p.Addr, 30)
	fmt.Printf("kprobe_target(30) = %d, %v\n", r, err)

	s, _, _ := e.Stats(p)
	fmt.Printf("hits %d, handled %d, missed %d\n", s.Hits, s.Handled, s.Missed)

	// What cannot be probed is refused with an errno and a stable code.
	err = e.Register(&probe.Kprobe{Symbol: "kprobe_target", Offset: 1})
	var refused *probe.Error
	if errors.As(err, &refused) && errors.Is(err, syscall.EILSEQ) {
		fmt.Println(refused.Code)
	}
	if err := f.Close(); err != nil { // takes all probes off
		fmt.Println(err)
	}

	// Output:
	// pre: v = 30
	// post: eax = 300
	// kprobe_target(30) = 100, <nil>
	// hits 1, handled 1, missed 0
	// not_boundary
}

// A pre handler that answers in the place of the function: it sets the
// registers as if the function had returned, and says so by returning 1.
func ExampleKprobe_redirect() {
	f, err := probetest.NewFake(probetest.FakeOptions{CPUs: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	p := &probe.Kprobe{Symbol: "hot", Pre: func(c *probe.Context) int {
		var ret [8]byte
		if c.Read(guest.GVA(c.Regs.RSP), ret[:]) != nil {
			return 0
		}
		c.Regs.RIP = 0
		for i := 7; i >= 0; i-- {
			c.Regs.RIP = c.Regs.RIP<<8 | uint64(ret[i])
		}
		c.Regs.RSP += 8
		c.Regs.RAX = 12345
		return 1
	}}
	if err := f.Engine().Register(p); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(f.Call(0, p.Addr, 1))
	if err := f.Close(); err != nil {
		fmt.Println(err)
	}

	// Output:
	// 12345 <nil>
}
