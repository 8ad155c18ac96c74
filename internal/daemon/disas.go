package daemon

import (
	"encoding/hex"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/arch/x86/x86asm"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/api"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/flow"
	"github.com/guestprobe/guestprobe/probe/insn"
)

// Disassembler lists functions of images. It remembers the branch targets of
// the last one. The zero value is ready; methods may be called from any thread.
type Disassembler struct {
	mu    sync.Mutex
	img   *guest.Image
	index *flow.Index
}

func (s *server) getDisas(w http.ResponseWriter, r *http.Request) error {
	q, err := query(r)
	if err != nil {
		return err
	}
	if q["at"] == "" {
		return badValue("at: say which function: a name, NAME+OFFSET or an address")
	}
	d, err := s.disas.Function(s.guest.Image(), q["at"])
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, d)
	return nil
}

// Function lists the function of img that at names: SYMBOL, SYMBOL+OFFSET or an
// address. Errors are *api.Error, or those of guest.Image's Lookup.
func (d *Disassembler) Function(img *guest.Image, at string) (api.Disas, error) {
	sym, addr, err := findFunction(img, at)
	if err != nil {
		return api.Disas{}, err
	}
	code, size := functionCode(img, sym)
	if len(code) == 0 {
		return api.Disas{}, &api.Error{Code: api.Code(probe.CodeNotText), Errno: "EINVAL", Message: sym.Name + " is not code"}
	}
	f := flow.Analyze(flow.Input{Addr: uint64(sym.Addr), Code: code, Targets: d.targets(img), Read: func(addr uint64, n int) []byte { return img.Constant(guest.GVA(addr), n) }})
	out := api.Disas{
		Symbol: sym.Name, Addr: api.Hex(sym.Addr), Size: uint64(size), Offset: uint64(addr - sym.Addr), User: sym.User,
		Blacklist: img.Blacklisted(sym.Addr), Insts: []api.DisasInst{},
	}
	cpl := uint8(0)
	if sym.User {
		cpl = 3
	}
	tables := map[int][]uint64{}
	for _, j := range f.Indirect() {
		tables[j.Off] = j.Targets
	}
	for _, i := range f.Insts() {
		if i.Off >= size {
			break
		}
		p := insn.Analyze(code[i.Off:], uint64(sym.Addr)+uint64(i.Off), insn.Options{CPL: cpl})
		at := sym.Addr + guest.GVA(i.Off)
		line := api.DisasInst{
			Offset: uint64(i.Off), Addr: api.Hex(at), Bytes: hex.EncodeToString(i.Bytes()), Text: instText(img, &i.Inst, at),
			Class: i.Class().String(), Kind: p.Kind.String(), Reason: p.Reason.String(), NoPost: p.NoStep,
			Ours: region(f, i.Off, flow.OursCalls), Kernel: region(f, i.Off, flow.Kernel),
		}
		for _, t := range tables[i.Off] {
			line.Table = append(line.Table, api.Hex(t))
		}
		out.Insts = append(out.Insts, line)
	}
	if off, err, bad := f.Undecodable(); bad && off < size {
		out.Undecodable = fmt.Sprintf("at +%#x: %v", off, err)
	} else if f.Size() > flow.MaxCode {
		out.Undecodable = fmt.Sprintf("more than %d bytes are not analyzed", flow.MaxCode)
	}
	return out, nil
}

// findFunction resolves at.
func findFunction(img *guest.Image, at string) (guest.Symbol, guest.GVA, error) {
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
		return sym, 0, err
	}
	if offset != 0 && offset >= sym.Size {
		return sym, 0, &api.Error{Code: api.Code(probe.CodeOffsetOutside), Errno: "EINVAL",
			Message: fmt.Sprintf("offset %#x is outside %s", offset, name), Detail: fmt.Sprintf("it has %#x bytes", sym.Size)}
	}
	return sym, sym.Addr + guest.GVA(offset), nil
}

// maxPadding is how far behind a function's end the next one is looked for, as
// package probe does.
const maxPadding = 63

// functionCode returns the bytes of a function with the padding behind it, and
// how many are the function's own.
func functionCode(img *guest.Image, sym guest.Symbol) (code []byte, size int) {
	n := int(min(sym.Size, flow.MaxCode+1))
	size = n
	for k := 0; k < maxPadding; k++ {
		at := sym.Addr + guest.GVA(n)
		if _, taken := img.Find(at); taken || !img.IsText(at) {
			break
		}
		n++
	}
	code = img.Code(sym.Addr, n)
	return code, min(size, len(code))
}

// targets returns the direct branch targets of the image.
func (d *Disassembler) targets(img *guest.Image) func(lo, hi uint64) []uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.img != img {
		var ts []uint64
		for _, s := range img.Symbols() {
			if s.Size != 0 && img.IsText(s.Addr) {
				ts = flow.AppendTargets(ts, uint64(s.Addr), img.Code(s.Addr, int(min(s.Size, flow.MaxCode))))
			}
		}
		d.img, d.index = img, flow.NewIndex(ts)
	}
	return d.index.Targets
}

// region returns the answer of one set of rules.
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

// instText prints an instruction, or returns "". x86asm knows fewer
// instructions than the decoder, and its lengths are not to be trusted: its text
// is taken only when both agree.
func instText(img *guest.Image, i *insn.Inst, at guest.GVA) string {
	if i.IsEndbr() {
		return map[uint8]string{0xfa: "endbr64", 0xfb: "endbr32"}[i.ModRM]
	}
	x, err := x86asm.Decode(i.Bytes(), 64)
	if err != nil || x.Len != int(i.Len) {
		return ""
	}
	return x86asm.GNUSyntax(x, uint64(at), func(addr uint64) (string, uint64) {
		if s, ok := img.Find(guest.GVA(addr)); ok {
			return s.Name, uint64(s.Addr)
		}
		return "", 0
	})
}
