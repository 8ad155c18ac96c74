package linux

import (
	"errors"
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
)

// Worker describes how to make a thread of the kernel run a function
// (include/linux/workqueue.h): queue_work_on(cpu, queue, work) may be called with
// interrupts off, and one of the kernel's threads calls the function of the work item
// with the item's address.
type Worker struct {
	QueueWork guest.GVA // queue_work_on
	Queue     guest.GVA // of the pointer to the queue
	Size      uint64    // of struct work_struct, in bytes
	Func      uint64    // offset of its function
	Data      uint64    // its first word before it is queued: in no pool

	// At is a function that the kernel calls for an interrupt, with interrupts off,
	// and Vector is the interrupt. It does no harm if there is nothing to do. Handler
	// is the target of the vector.
	At      string
	Vector  uint8
	Handler guest.GVA
}

// irqWorkVector is IRQ_WORK_VECTOR (arch/x86/include/asm/irq_vectors.h): a CPU sends
// it to itself to run work that waits for interrupts to be on again
// (kernel/irq_work.c).
const irqWorkVector = 0xf6

// Worker determines how to use the kernel's workqueues. Errors say which part the
// kernel lacks.
func (v *View) Worker() (w Worker, err error) {
	f := &finder{types: v.running.types, lookup: v.Address}
	const feature = "functions of the kernel, called by the host"
	var data, fn field
	ok := f.fields(feature, need{&data, "work_struct.data"}, need{&fn, "work_struct.func"})
	if ok {
		var whole field
		whole, err = v.running.types.field("work_struct")
		w.Size, w.Func = uint64(whole.Size), uint64(fn.Off)
		ok = err == nil && data.Off == 0 && data.Size == 8 && fn.Size == 8
	}
	var found bool
	if w.QueueWork, found = f.symbol(feature, "queue_work_on"); !found {
		ok = false
	}
	for _, name := range []string{"system_percpu_wq", "system_wq"} { // Linux 6.17 warns of the second
		if w.Queue, found = v.Address(name); found {
			break
		}
	}
	if !found {
		f.missing = append(f.missing, feature+": the kernel has no symbol system_wq")
	}
	w.At, w.Vector = "irq_work_run", irqWorkVector
	_, runs := f.symbol(feature, w.At)
	var handled bool
	w.Handler, handled = f.symbol(feature, "asm_sysvec_irq_work")
	if !ok || !found || !runs || !handled {
		if len(f.missing) == 0 {
			return w, fmt.Errorf("%s: struct work_struct is not as it is known", feature)
		}
		return w, errors.New(f.missing[0])
	}
	w.Data, err = freshWork(v)
	return w, err
}

// freshWork returns the first word of a work item that was never queued,
// WORK_STRUCT_NO_POOL, whose bits depend on the kernel's version. It is read from
// items whose work is done only once, when the guest ends.
func freshWork(v *View) (uint64, error) {
	var seen []uint64
	for _, name := range []string{"poweroff_work", "reboot_work", "deferred_poweroff_work", "moom_work"} {
		at, ok := v.Address(name)
		if !ok {
			continue
		}
		n, err := v.read.value(at, word)
		if err != nil {
			return 0, err
		}
		// No flag, no color: bits below the pool's number, which is all ones.
		if n&0x1f == 0 && n>>5 != 0 {
			seen = append(seen, n)
		}
	}
	if len(seen) == 0 {
		return 0, errors.New("functions of the kernel, called by the host: no work item of the kernel's shows what a new one is")
	}
	for _, n := range seen {
		if n != seen[0] {
			return 0, fmt.Errorf("functions of the kernel, called by the host: new work items are %#x and %#x", seen[0], n)
		}
	}
	return seen[0], nil
}
