package probe_test

import (
	"encoding/binary"
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/probe"
)

// boot starts the guest of the examples: the suite's image in the fake, so that
// they run anywhere. On a real guest the engine is machine.Machine.Engine().
func boot() (e *probe.Engine, call func(fn string, args ...uint64) uint64, end func()) {
	f, err := probetest.NewFake(probetest.FakeOptions{})
	if err != nil {
		panic(err)
	}
	call = func(fn string, args ...uint64) uint64 {
		s, err := f.Symbol(fn)
		if err != nil {
			panic(err)
		}
		r, err := f.Call(0, s.Addr, args...)
		if err != nil {
			panic(err)
		}
		return r
	}
	return f.Engine(), call, func() { f.Close() }
}

func ExampleKprobe() {
	e, call, end := boot()
	defer end()
	p := &probe.Kprobe{
		Name: "first", Symbol: "kprobe_target",
		Pre: func(c *probe.Context) int {
			fmt.Printf("at %s with %d\n", "kprobe_target", c.Regs.RDI)
			return 0 // nonzero: the handler has set the registers, skip the instruction
		},
		Post: func(c *probe.Context) { fmt.Printf("next instruction is %d bytes on\n", guest.GVA(c.Regs.RIP)-c.Addr) },
	}
	if err := e.Register(p); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("result", call("kprobe_target", 30))
	total, _, _ := e.Stats(p)
	fmt.Printf("%d hit, %d handled, %d missed\n", total.Hits, total.Handled, total.Missed)
	if err := e.Unregister(p); err != nil {
		fmt.Println(err)
	}
	// Output:
	// at kprobe_target with 30
	// next instruction is 2 bytes on
	// result 10
	// 1 hit, 1 handled, 0 missed
}

func ExampleKretprobe() {
	e, call, end := boot()
	defer end()
	r := &probe.Kretprobe{
		Kprobe:    probe.Kprobe{Name: "back", Symbol: "recurse"},
		MaxActive: 2, // calls followed at a time
		DataSize:  8,
		Entry: func(c *probe.Context) int {
			binary.LittleEndian.PutUint64(c.Data, c.Regs.RDI)
			return 0 // nonzero: this call is not followed
		},
		Return: func(c *probe.Context) {
			fmt.Printf("recurse(%d) = %d\n", binary.LittleEndian.Uint64(c.Data), c.Regs.RAX)
			if c.Regs.RAX == 6 {
				c.Regs.RAX = 600 // the caller gets this
			}
		},
	}
	if err := e.Register(r); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("result", call("recurse", 3))
	i, _ := e.Info(&r.Kprobe)
	fmt.Printf("%d handled, %d missed, at most %d of %d at a time\n", i.Stats.Handled, i.Stats.Missed, i.HighWater, i.MaxActive)
	// Output:
	// recurse(2) = 3
	// recurse(3) = 6
	// result 600
	// 2 handled, 2 missed, at most 2 of 2 at a time
}

func ExampleContext_Stack() {
	e, call, end := boot()
	defer end()
	show := func(c *probe.Context) {
		pcs := make([]guest.GVA, 3)
		var names []string
		for _, pc := range pcs[:c.Stack(pcs)] {
			if s, ok := probetest.Image().Find(pc); ok {
				names = append(names, s.Name)
			}
		}
		fmt.Println(names)
	}
	// A trampoline is in the place of stack_target's return address. It is not
	// visible.
	r := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "stack_target"}, Return: show}
	p := &probe.Kprobe{Symbol: "stack_internal", Pre: func(c *probe.Context) int { show(c); return 0 }}
	if err := e.Register(r, p); err != nil {
		fmt.Println(err)
		return
	}
	call("stack_driver", 1)
	// Output:
	// [stack_internal stack_target stack_driver]
	// [stack_driver]
}

func ExampleJprobe() {
	e, call, end := boot()
	defer end()
	j := &probe.Jprobe{
		Kprobe: probe.Kprobe{Symbol: "many_args"},
		Entry: func(_ *probe.Context, a probe.Args) {
			fmt.Println("int arg 0:", probe.Arg[int32](a, 0), "and on the stack:", a.Uint64(7))
		},
		// The original form: a function of the guest with the same arguments runs
		// first. It ends in jprobe_return.
		Mirror: "mirror_many",
	}
	if err := e.Register(j); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("result", call("call_many", 1)) // 1*1 + 2*2 + ... + 8*8
	// Output:
	// int arg 0: 1 and on the stack: 8
	// result 204
}
