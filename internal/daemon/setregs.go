package daemon

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/guestprobe/guestprobe/internal/api"
	"github.com/guestprobe/guestprobe/kvm/machine"
)

// settable are the registers that can be changed, by their names.
func settable(r *machine.Registers) map[string]*uint64 {
	g, y := &r.Regs, &r.System
	m := map[string]*uint64{
		"rax": &g.RAX, "rbx": &g.RBX, "rcx": &g.RCX, "rdx": &g.RDX, "rsi": &g.RSI, "rdi": &g.RDI, "rsp": &g.RSP, "rbp": &g.RBP, "rip": &g.RIP, "rflags": &g.RFLAGS,
		"r8": &g.R8, "r9": &g.R9, "r10": &g.R10, "r11": &g.R11, "r12": &g.R12, "r13": &g.R13, "r14": &g.R14, "r15": &g.R15,
		"fs_base": &y.FS.Base, "gs_base": &y.GS.Base, "kernel_gs_base": &r.KernelGS,
		"cr0": &y.CR0, "cr2": &y.CR2, "cr3": &y.CR3, "cr4": &y.CR4, "cr8": &y.CR8, "efer": &y.EFER,
		"dr6": &r.Debug.DR6, "dr7": &r.Debug.DR7,
	}
	for i := range r.Debug.DB {
		m[fmt.Sprintf("dr%d", i)] = &r.Debug.DB[i]
	}
	return m
}

func (s *server) putRegisters(w http.ResponseWriter, r *http.Request) error {
	var req api.WriteRegisters
	if err := readBody(w, r, &req, false); err != nil {
		return err
	}
	if len(req.Set) == 0 {
		return badValue("set: say which registers, and what is to be in them")
	}
	var out api.Registers
	if err := s.look(func(l *machine.Look) error {
		regs, err := l.Registers(req.VCPU)
		if err != nil {
			return err
		}
		to := settable(&regs)
		for name, value := range req.Set {
			p := to[strings.ToLower(name)]
			if p == nil {
				names := make([]string, 0, len(to))
				for n := range to {
					names = append(names, n)
				}
				slices.Sort(names)
				return badValue("%q: no register that can be changed; those are %s", name, strings.Join(names, ", "))
			}
			*p = uint64(value)
		}
		if err := l.Change(req.VCPU, regs); err != nil {
			return err
		}
		regs, err = l.Registers(req.VCPU)
		out = s.wireRegisters(&regs)
		return err
	}); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}
