package http

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	x86text "github.com/guestprobe/guestprobe/guest/x86/text"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/flow"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/session"
)

// Disassembler lists functions of images. It caches the analysis of the last
// one. The zero value is ready; methods may be called from any thread.
type Disassembler struct {
	mu    sync.Mutex
	img   guest.View
	funcs *probe.Functions
}

func (in *inspector) getDisas(w http.ResponseWriter, _ *http.Request, q values) error {
	d, err := in.disas.Function(in.guest.Image(), q.text("at"))
	if err != nil {
		return err
	}
	if q.flag("lines") {
		info, by, err := sourceOf(in.guest)
		if err != nil {
			return err
		}
		addSource(&d, info, by)
	}
	in.markProbes(&d)
	writeJSON(w, http.StatusOK, d)
	return nil
}

// markProbes marks the probes that are attached to instructions of d.
func (in *inspector) markProbes(d *api.Disas) {
	at := map[api.Hex]*api.DisasInst{}
	for i := range d.Insts {
		at[d.Insts[i].Addr] = &d.Insts[i]
	}
	as := slices.DeleteFunc(slices.Clone(in.probes.Probes()), func(a *session.Probe) bool {
		return a.Def().Kind == event.KindWatch || uint64(a.Addr())-uint64(d.Addr) >= d.Size
	})
	for _, i := range in.probes.DescribePresent(as) {
		p := wireProbe(&i)
		x := api.DisasProbe{Name: p.Name, How: "none", Hits: p.Stats.Hits, Region: p.Region}
		switch {
		case p.Optimized && p.Runs == api.RunsInGuest:
			x.How = "program"
		case p.Optimized:
			x.How = "jump"
		case p.Armed:
			x.How = "int3"
		}
		if i := at[p.Addr]; i != nil {
			i.Probes = append(i.Probes, x)
		}
	}
}

// Function lists the function of img that at names: SYMBOL, SYMBOL+OFFSET or an
// address. Errors are *api.Error, or come from guest.Image's Lookup.
func (d *Disassembler) Function(img guest.View, at string) (api.Disas, error) {
	sym, addr, err := findFunction(img, at)
	if err != nil {
		return api.Disas{}, err
	}
	f := d.analyze(img, sym)
	if f == nil {
		return api.Disas{}, &api.Error{Code: api.Code(probe.CodeNotText), Errno: "EINVAL", Message: sym.Name + " is not code"}
	}
	code := img.Code(sym.Addr, f.Size())
	size := min(int(min(sym.Size, flow.MaxCode+1)), len(code))
	out := api.Disas{
		Symbol: sym.Name, Addr: api.Hex(sym.Addr), Size: uint64(size), Offset: uint64(addr - sym.Addr), User: sym.User,
		Blacklist: img.BlacklistReason(sym.Addr), Insts: []api.DisasInst{},
	}
	cpl := uint8(0)
	if sym.User {
		cpl = 3
	}
	tables := map[int][]uint64{}
	for _, j := range f.IndirectJumps() {
		tables[j.Off] = j.Targets
	}
	for _, i := range f.Insts() {
		if i.Off >= size {
			break
		}
		p := x86.Analyze(code[i.Off:], uint64(sym.Addr)+uint64(i.Off), x86.Options{CPL: cpl})
		at := sym.Addr + guest.GVA(i.Off)
		line := api.DisasInst{
			Offset: uint64(i.Off), Addr: api.Hex(at), Bytes: hex.EncodeToString(i.Bytes()), Text: instText(img, &i.Inst, at),
			Class: i.Class().String(), Kind: p.Kind.String(), Reason: p.Reason.String(), NoPost: p.NoStep,
			Ours: region(f, i.Off, flow.OursCalls), Kernel: region(f, i.Off, flow.Kernel),
		}
		if no := probe.Boundary(f, sym, at); no != nil {
			line.Kind, line.Reason = x86.Refuse.String(), string(no.Code)
		}
		if why := img.BlacklistReason(at); why != "" {
			no := api.DisasRegion{Reason: string(probe.CodeBlacklisted), Detail: why}
			line.Kind, line.Reason, line.Ours, line.Kernel = x86.Refuse.String(), no.Reason, no, no
		}
		for _, t := range tables[i.Off] {
			line.Table = append(line.Table, api.Hex(t))
		}
		out.Insts = append(out.Insts, line)
	}
	if off, err, bad := f.FirstUndecodable(); bad && off < size {
		out.Undecodable = fmt.Sprintf("at +%#x: %v", off, err)
	} else if f.Size() > flow.MaxCode {
		out.Undecodable = fmt.Sprintf("more than %d bytes are not analyzed", flow.MaxCode)
	}
	return out, nil
}

// findFunction resolves at.
func findFunction(img guest.View, at string) (guest.Symbol, guest.GVA, error) {
	if addr, err := strconv.ParseUint(at, 0, 64); err == nil {
		sym, ok := img.Find(guest.GVA(addr))
		if !ok {
			return sym, 0, &api.Error{Code: api.Code(probe.CodeNoSymbolAt), Errno: "ENOENT", Message: fmt.Sprintf("%v is in no function", guest.GVA(addr))}
		}
		return sym, guest.GVA(addr), nil
	}
	name, offset := at, uint64(0)
	// A name may hold a plus, as in C++.
	if k := strings.LastIndexByte(at, '+'); k > 0 {
		if n, err := strconv.ParseUint(at[k+1:], 0, 64); err == nil {
			name, offset = at[:k], n
		}
	}
	sym, err := img.Lookup(name)
	if err != nil {
		if near := guest.SymbolAdvice(name, img.Symbols()); near != "" && errors.Is(err, guest.ErrSymbolNotFound) && guest.Advice(err) == "" {
			err = &guest.MissingSymbolError{Name: name, Advice: near}
		}
		return sym, 0, err
	}
	if offset != 0 && offset >= sym.Size {
		return sym, 0, &api.Error{Code: api.Code(probe.CodeOffsetOutside), Errno: "EINVAL",
			Message: fmt.Sprintf("offset %#x is outside %s", offset, name), Detail: fmt.Sprintf("it has %#x bytes", sym.Size)}
	}
	return sym, sym.Addr + guest.GVA(offset), nil
}

// analyze returns the analysis of a function, or nil when it is not code.
func (d *Disassembler) analyze(img guest.View, sym guest.Symbol) *flow.Func {
	d.mu.Lock()
	defer d.mu.Unlock()
	f, _ := d.functionsOf(img).Analyze(sym)
	return f
}

// functionsOf returns the functions of img. Callers hold mu.
func (d *Disassembler) functionsOf(img guest.View) *probe.Functions {
	if d.img != img {
		d.img, d.funcs = img, probe.NewFunctions(img)
	}
	return d.funcs
}

// region returns the result for one set of rules.
func region(f *flow.Func, off int, r flow.Rule) api.DisasRegion {
	reg, no := f.Region(off, r)
	if no == nil {
		return api.DisasRegion{Length: reg.Len, Boundaries: reg.Boundaries}
	}
	out := api.DisasRegion{Reason: string(no.Reason), Detail: no.Detail}
	if no.Off >= 0 {
		at := int64(no.Off)
		out.At = &at
	}
	return out
}

// instText prints an instruction, or returns "".
func instText(img guest.View, i *x86.Inst, at guest.GVA) string {
	return x86text.Format(i, uint64(at), func(addr uint64) (string, uint64) {
		s, _ := img.Find(guest.GVA(addr))
		return s.Name, uint64(s.Addr)
	})
}
