package linux

import (
	"errors"
	"sort"

	"github.com/guestprobe/guestprobe/guest"
)

const KernelMap = startKernelMap

type View struct {
	k      *Kernel
	slide  uint64
	read   func(guest.GVA, []byte) error
	syms   []guest.Symbol
	by     map[string]int
	lo, hi guest.GVA
}

func NewView(k *Kernel, slide uint64, read func(guest.GVA, []byte) error) *View {
	v := &View{k: k, slide: slide, read: read, by: map[string]int{}}
	for _, n := range k.mem.Names {
		if n.Addr < startKernelMap {
			continue
		}
		v.syms = append(v.syms, guest.Symbol{Name: n.Name, Addr: guest.GVA(n.Addr + slide), Kind: guest.SymFunc})
	}
	sort.SliceStable(v.syms, func(i, j int) bool { return v.syms[i].Addr < v.syms[j].Addr })
	for i := range v.syms {
		if i+1 < len(v.syms) {
			v.syms[i].Size = uint64(v.syms[i+1].Addr - v.syms[i].Addr)
		}
		if _, ok := v.by[v.syms[i].Name]; !ok {
			v.by[v.syms[i].Name] = i
		}
	}
	if s, err := v.Lookup("_text"); err == nil {
		v.lo = s.Addr
	}
	if s, err := v.Lookup("_einittext"); err == nil {
		v.hi = s.Addr
	}
	return v
}
func (v *View) ID() guest.ID { return v.k.ID }
func (v *View) Lookup(n string) (guest.Symbol, error) {
	if i, ok := v.by[n]; ok {
		return v.syms[i], nil
	}
	return guest.Symbol{}, guest.ErrSymbolNotFound
}
func (v *View) Find(a guest.GVA) (guest.Symbol, bool) {
	i := sort.Search(len(v.syms), func(i int) bool { return v.syms[i].Addr > a }) - 1
	if i < 0 {
		return guest.Symbol{}, false
	}
	return v.syms[i], true
}
func (v *View) Match(p string) (out []guest.Symbol) {
	for _, s := range v.syms {
		if guest.Glob(p, s.Name) {
			out = append(out, s)
		}
	}
	return
}
func (v *View) Symbols() []guest.Symbol     { return v.syms }
func (v *View) IsText(a guest.GVA) bool     { return a >= v.lo && a < v.hi }
func (v *View) IsUserText(a guest.GVA) bool { return false }
func (v *View) Text(u bool) []guest.Range {
	if u {
		return nil
	}
	return []guest.Range{{Start: v.lo, End: v.hi}}
}
func (v *View) Code(a guest.GVA, n int) []byte {
	b := make([]byte, n)
	if v.read(a, b) != nil {
		return nil
	}
	return b
}
func (v *View) Constant(a guest.GVA, n int) []byte             { return nil }
func (v *View) Data(lo, hi guest.GVA) string                   { return "" }
func (v *View) Blacklisted(a guest.GVA) string                 { return "" }
func (v *View) FrameRule(pc guest.GVA) (guest.FrameRule, bool) { return guest.FrameRule{}, false }
func (v *View) Profile() (guest.Profile, error)                { return guest.Profile{}, errors.New("linux") }
