package torture

import (
	"debug/elf"
	_ "embed"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/elfbuild"
)

// The addresses of a guest's parts. All tasks share the user text. Each has a
// data area and stacks of its own: the second is for its signals, the third the
// one that it moves to.
const (
	textVA  = 0x1000_0000_0000
	textPA  = 0x40_0000
	maxText = 1 << 20

	dataVA   = 0x1000_1000_0000
	dataPA   = 0x60_0000
	dataSize = 16 << 10

	stackVA   = 0x1000_2000_0000
	stackPA   = 0x80_0000
	stackSize = 16 << 10 // as in kernel.c
	stacks    = 4        // of a task: its own, its signals', the one that it moves to, and a hole

	maxTasks = 16
	ramSize  = 16 << 20
)

// dataOf and stackOf are the addresses of a task's data, and of the lowest byte of
// its stack or of its signals'.
func dataOf(task int) uint64 { return dataVA + uint64(task)*dataSize }

func stackOf(task int, signals bool) uint64 {
	a := stackVA + uint64(task)*stacks*stackSize
	if signals {
		a += stackSize
	}
	return a
}

//go:generate bash kernel/build.sh

//go:embed kernel/kernel.elf
var kernelELF []byte

var parseKernel = sync.OnceValues(func() (*guest.Image, error) { return guest.ParseELF(kernelELF) })

// image makes the guest's image for p.
func image(p *Program) (*guest.Image, error) {
	k, err := parseKernel()
	if err != nil {
		return nil, fmt.Errorf("kernel of tortured guests: %w", err)
	}
	promises, err := k.FlagsAt()
	if err != nil {
		return nil, fmt.Errorf("kernel of tortured guests: %w", err)
	}
	f := elfbuild.File{Entry: k.Entry}
	for i, s := range k.Segments {
		if s.MemSize == 0 {
			continue
		}
		flags := elf.PF_R
		if s.W {
			flags |= elf.PF_W
		}
		if s.X {
			flags |= elf.PF_X
		}
		data := s.Data
		if off := promises - s.VAddr; off < guest.GVA(len(data)) {
			data = slices.Clone(data)
			binary.LittleEndian.PutUint64(data[off:], p.promises())
		}
		f.Segments = append(f.Segments, elfbuild.Segment{Section: fmt.Sprintf(".kernel%d", i), VAddr: s.VAddr, PAddr: s.PAddr, Flags: flags, Data: data, MemSize: s.MemSize})
	}
	for _, s := range k.Symbols() {
		typ := elf.STT_NOTYPE
		switch {
		case s.Label:
		case s.Kind == guest.SymFunc:
			typ = elf.STT_FUNC
		case s.Kind == guest.SymData:
			typ = elf.STT_OBJECT
		}
		f.Symbols = append(f.Symbols, elfbuild.Symbol{Name: s.Name, Addr: s.Addr, Size: s.Size, Type: typ})
	}
	user := guest.PFUser | elf.PF_R
	if p.Kernel {
		user = elf.PF_R
	}
	text := user | elf.PF_X
	if p.Classes&Rewrites != 0 {
		text |= elf.PF_W
	}
	f.Segments = append(f.Segments,
		elfbuild.Segment{Section: ".utext", VAddr: textVA, PAddr: textPA, Flags: text, Data: p.Text},
		elfbuild.Segment{VAddr: dataVA, PAddr: dataPA, Flags: user | elf.PF_W, MemSize: maxTasks * dataSize},
		elfbuild.Segment{VAddr: stackVA, PAddr: stackPA, Flags: user | elf.PF_W, MemSize: stacks * maxTasks * stackSize})
	for _, fn := range p.Funcs {
		f.Symbols = append(f.Symbols, elfbuild.Symbol{Name: fn.Name, Addr: guest.GVA(textVA + fn.Off), Size: uint64(fn.Size), Type: fn.symType()})
	}
	img, err := f.Image()
	if err != nil {
		return nil, fmt.Errorf("tortured guest: %w", err)
	}
	return img, nil
}

// promises returns the flags of the guest's profile: whether text runs at one
// address only.
func (p *Program) promises() uint64 {
	const user, kernel = uint64(guest.ProfileOneMapping), uint64(guest.ProfileKernelOnce)
	switch {
	case p.Alias == nil:
		return user | kernel
	case p.Kernel:
		return user
	}
	return kernel
}

// config is the kernel's description of a task: struct config.
func (p *Program) config(task int) []byte {
	var b []byte
	add := func(v uint64) { b = binary.LittleEndian.AppendUint64(b, v) }
	add(textVA + uint64(p.Entry))
	add(stackOf(task, false) + stackSize - 64)
	add(dataOf(task))
	switch {
	case p.Handler == 0:
		add(0)
		add(0)
	case p.AltStack:
		add(textVA + uint64(p.Handler))
		add(stackOf(task, true) + stackSize - 64)
	default:
		add(textVA + uint64(p.Handler))
		add(0)
	}
	lo, hi := p.pages(task)
	add(lo)
	add(hi)
	add(uint64(max(1, p.SignalEvery)))
	if p.Kernel {
		add(1)
	} else {
		add(0)
	}
	add(stackOf(task, false) + otherStack + stackSize - 64)
	return b
}
