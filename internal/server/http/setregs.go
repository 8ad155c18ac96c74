package http

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/big"
	"net/http"
	"slices"
	"strings"

	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// cell is a register that can be changed.
type cell struct {
	bits int
	set  func(n *big.Int)
}

// number is a cell for an integer in the machine's registers.
func number[T uint8 | uint16 | uint32 | uint64](p *T) cell {
	return cell{8 * binary.Size(*p), func(n *big.Int) { *p = T(n.Uint64()) }}
}

// wideCell is a cell for bytes, little-endian.
func wideCell(b []byte) cell {
	return cell{8 * len(b), func(n *big.Int) {
		n.FillBytes(b)
		slices.Reverse(b)
	}}
}

// settableRegisters are the registers that can be changed, by their names.
func settableRegisters(r *machine.Registers) map[string]cell {
	g, y, m := &r.Regs, &r.System, map[string]cell{}
	for i, p := range g.Fields() {
		m[x86.RegNames[i]] = number(p)
	}
	for name, p := range map[string]*uint64{
		"fs_base": &y.FS.Base, "gs_base": &y.GS.Base, "kernel_gs_base": &r.KernelGS,
		"cr0": &y.CR0, "cr2": &y.CR2, "cr3": &y.CR3, "cr4": &y.CR4, "cr8": &y.CR8, "efer": &y.EFER,
		"dr6": &r.Debug.DR6, "dr7": &r.Debug.DR7,
	} {
		m[name] = number(p)
	}
	for i := range r.Debug.DB {
		m[fmt.Sprintf("dr%d", i)] = number(&r.Debug.DB[i])
	}
	return m
}

// settableVectors returns the same for the floating point and vector registers.
func settableVectors(v *machine.Vectors) map[string]cell {
	m := map[string]cell{
		"fctrl": number(&v.Control), "fstat": number(&v.Status), "ftag": number(&v.Tag), "fop": number(&v.Opcode), "fip": number(&v.IP), "fdp": number(&v.DP), "mxcsr": number(&v.MXCSR),
	}
	each := func(name string, i int, c cell) { m[fmt.Sprintf("%s%d", name, i)] = c }
	for i := range v.ST {
		each("st", i, wideCell(v.ST[i][:]))
	}
	for i := range v.Regs {
		for width, name := range vectorNames {
			if width <= v.Width {
				each(name, i, wideCell(v.Regs[i][:width]))
			}
		}
	}
	if v.HasMask {
		for i := range v.Mask {
			each("k", i, number(&v.Mask[i]))
		}
	}
	if v.HasPKRU {
		m["pkru"] = number(&v.PKRU)
	}
	return m
}

// maxNumber is how long a value may be as text: 512 bits, in any base.
const maxNumber = 2 + 512

// vectorNames are the names of vector registers by their bytes.
var vectorNames = map[int]string{16: "xmm", 32: "ymm", 64: "zmm"}

func (in *inspector) putRegisters(w http.ResponseWriter, r *http.Request) error {
	var req api.WriteRegisters
	if err := readBody(w, r, &req, false); err != nil {
		return err
	}
	if len(req.Set) == 0 {
		return badValue("set: name the registers and their values")
	}
	var out api.Registers
	if err := in.look(func(l *machine.Look) error {
		regs, err := l.Registers(req.VCPU)
		if err != nil {
			return err
		}
		vectors, err := l.Vectors(req.VCPU)
		if err != nil {
			return err
		}
		to, wider := settableRegisters(&regs), settableVectors(&vectors)
		var changed *machine.Vectors
		given := map[string]string{}
		// The widest first, so that xmm0 has its given value even with a ymm0.
		for _, name := range slices.Backward(slices.Sorted(maps.Keys(req.Set))) {
			known := strings.ToLower(name)
			if i, ok := x86.FindReg(known); ok {
				known = x86.RegNames[i]
			}
			if other, twice := given[known]; twice {
				return badValue("%q and %q are one register: give it once", other, name)
			}
			given[known] = name
			c, ok := to[known]
			if !ok {
				if c, ok = wider[known]; !ok {
					return badValue("%q: no register of this vCPU that can be changed: 'guestprobe regs --help' names those", name)
				}
				changed = &vectors
			}
			value := req.Set[name]
			n, ok := new(big.Int), len(value) <= maxNumber
			if ok {
				_, ok = n.SetString(value, 0)
			}
			if !ok || n.Sign() < 0 || n.BitLen() > c.bits {
				return badValue("%s: %.200q is not a number of %d bits", name, value, c.bits)
			}
			c.set(n)
		}
		if err := l.Change(req.VCPU, regs, changed); err != nil {
			return err
		}
		if regs, err = l.Registers(req.VCPU); err != nil {
			return err
		}
		out = in.wireRegisters(&regs)
		if changed != nil {
			if vectors, err = l.Vectors(req.VCPU); err == nil {
				out.Vectors = wireVectors(&vectors)
			}
		}
		return err
	}); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}
