package soak

import (
	"fmt"
	"math/rand/v2"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/builtin"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// function is one function of the guest, and where its instructions begin.
type function struct {
	sym    guest.Symbol
	unique bool // no other symbol has its name
	starts []uint64
}

// sites are the places of the built-in guest.
type sites struct {
	img   *guest.Image
	funcs []function
	n     int // instruction boundaries
}

// findSites decodes every function of the kernel and of the user program, from
// its beginning as long as there are instructions.
func findSites() (*sites, error) {
	img, err := guest.ParseELF(builtin.ELF())
	if err != nil {
		return nil, err
	}
	s := &sites{img: img}
	names := map[string]int{}
	for _, sym := range img.Symbols() {
		names[sym.Name]++
	}
	for _, sym := range img.Symbols() {
		if sym.Kind != guest.SymFunc || sym.Size == 0 {
			continue
		}
		f := function{sym: sym, unique: names[sym.Name] == 1}
		for off := uint64(0); off < sym.Size; {
			// An address inside belongs to the innermost symbol.
			if in, ok := img.Find(sym.Addr + guest.GVA(off)); !ok || in.Addr != sym.Addr {
				break
			}
			i, err := x86.Decode(img.Code(sym.Addr+guest.GVA(off), x86.MaxLen))
			if err != nil {
				break
			}
			f.starts = append(f.starts, off)
			off += uint64(i.Len)
		}
		if len(f.starts) > 0 {
			s.funcs = append(s.funcs, f)
			s.n += len(f.starts)
		}
	}
	if len(s.funcs) == 0 {
		return nil, fmt.Errorf("the built-in guest has no functions")
	}
	return s, nil
}

// place is one address, as a definition writes it.
type place struct {
	text  string
	addr  guest.GVA
	inner bool // not the beginning of an instruction
	entry bool // the beginning of a function: its returns and arguments can be probed
	fn    string
}

// pick chooses a function, and in it an instruction. Short functions are as
// likely as long ones, so that entries and tiny functions get their share. One
// place in 30 is inside an instruction, and must be rejected.
func (s *sites) pick(r *rand.Rand) place {
	f := &s.funcs[r.IntN(len(s.funcs))]
	i := r.IntN(len(f.starts))
	if r.IntN(4) == 0 {
		i = 0
	}
	off := f.starts[i]
	p := place{fn: f.sym.Name}
	if r.IntN(30) == 0 && i+1 < len(f.starts) && f.starts[i+1] > off+1 {
		off++
		p.inner = true
	}
	p.addr = f.sym.Addr + guest.GVA(off)
	p.entry = off == 0
	switch {
	case !f.unique || r.IntN(3) == 0:
		p.text = p.addr.String()
	case off == 0:
		p.text = f.sym.Name
	default:
		p.text = fmt.Sprintf("%s+%#x", f.sym.Name, off)
	}
	return p
}

// mirrors are the functions of the guest with a mirror.
var mirrors = map[string]string{"do_fork": "jdo_fork", "vfs_read": "jvfs_read", "tcp_v4_rcv": "jtcp_v4_rcv", "many_args": "jmany_args"}

// fetches are arguments for random definitions: registers, the stack, memory at
// a register that often holds no address, variables, the task.
var fetches = []string{
	"", "", " a=%di b=%si:s32", " fl=%flags sp=%sp", " w=$stack0 v=$stack2:u16", " s=+0(%si):string", " p=+0(+8(%sp)):u8",
	" r=@workload_rounds:u64[2]", " who=$comm", " x=+0(%ax):x64 y=-8(%bp):s64 ip=%ip:symbol",
}

// returnFetches are arguments for return probes.
var returnFetches = []string{"", " ret=%ax:s64", " ret=%ax a=$arg1 b=$arg2:u8", " s=+0($arg2):string w=@workload_rounds:u64"}

// define writes a definition for a probe called name: of a function's entry
// one in three asks for its returns.
func define(r *rand.Rand, name string, at place) (def string, returns bool) {
	n := r.IntN(len(fetches) * len(returnFetches))
	switch kind := r.IntN(12); {
	case !at.entry || kind >= 4:
		return "p:" + name + " " + at.text + fetches[n%len(fetches)], false
	case kind == 0:
		// Few instances: calls without a free one are missed, and counted.
		return "r1:" + name + " " + at.text + returnFetches[n%len(returnFetches)], true
	default:
		return "r:" + name + " " + at.text + returnFetches[n%len(returnFetches)], true
	}
}
