package machine_test

import (
	"context"
	"fmt"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/builtin"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe"
)

// A probe from the guest's first instruction on, and a function of the guest that
// the host calls.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	img, err := guest.ParseELF(builtin.ELF())
	if err != nil {
		fmt.Println(err)
		return
	}
	m, err := machine.New(machine.Config{Image: img, VCPUs: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer m.Close(ctx)
	p := &probe.Kprobe{Name: "calls", Symbol: "ackermann", Pre: func(c *probe.Context) int {
		if c.Regs.RDI == 2 && c.Regs.RSI == 3 { // its first two arguments
			fmt.Println("ackermann is called")
		}
		return 0
	}}
	if err := m.Engine().Register(p); err != nil {
		fmt.Println(err)
		return
	}
	if err := m.Resume(); err != nil {
		fmt.Println(err)
		return
	}
	fn, err := img.Lookup("ackermann")
	if err != nil {
		fmt.Println(err)
		return
	}
	result, err := m.Call(ctx, fn.Addr, 2, 3)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("it returned", result)
	if err := m.Engine().Unregister(p); err != nil {
		fmt.Println(err)
	}
	// Output:
	// ackermann is called
	// it returned 9
}
