package program

import (
	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/bpf"
)

// entry makes the stage that stores, at a function's entry, the data that the program
// at its return reads. It is nil if the program reads none.
func (b *blocks) entry() *probe.Stage {
	code, reads := b.info.EntryCode()
	if code == nil {
		return nil
	}
	s := &probe.Stage{Code: code, NoStrings: true, Aligned: true, Stack: bpf.EntryStack, Reads: reads,
		Block: guest.GVA(b.area.Addr), Stride: uint64(b.stride)}
	b.stages = append(b.stages, s)
	return s
}
