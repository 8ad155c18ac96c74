package guest

import "sync"

// TextPins records the memory in which Text.Patch has replaced bytes. As long as some
// of them are not restored, an address space with the pins (AddressSpace.WithPins)
// has their page there, although the guest may have mapped other memory at the
// address: no patched byte may remain in the first memory. Patches change the pins,
// so every vCPU is out of guest mode then; reads come from any goroutine. The zero
// value is empty.
type TextPins struct {
	pages sync.Map // page -> GPA
	own   map[GVA]replaced
	count map[GVA]int // of own, by page
	idle  []GVA       // pages whose last byte was restored
}

// replaced is a byte of text.
type replaced struct{ was, is byte }

// pageAt returns the address of the page of va, if it is pinned.
func (p *TextPins) pageAt(va GVA) (GPA, bool) {
	if p == nil {
		return 0, false
	}
	pa, ok := p.pages.Load(va &^ (page4K - 1))
	if !ok {
		return 0, false
	}
	return pa.(GPA) + GPA(va&(page4K-1)), true
}

// note records that old at va, whose page is at pa, was replaced by new. All of it
// lies in one page.
func (p *TextPins) note(va GVA, pa GPA, old, new []byte) {
	page := va &^ (page4K - 1)
	for i := range new {
		a := va + GVA(i)
		b, ours := p.own[a]
		switch {
		case ours && new[i] == b.was:
			p.drop(a)
		case ours:
			p.own[a] = replaced{b.was, new[i]}
		case new[i] != old[i]:
			if p.own == nil {
				p.own, p.count = map[GVA]replaced{}, map[GVA]int{}
			}
			p.own[a] = replaced{old[i], new[i]}
			p.count[page]++
		}
	}
	if p.count[page] > 0 {
		p.pages.LoadOrStore(page, pa&^(page4K-1))
	}
}

// lose drops the bytes of got, at va, that have changed since: the guest has
// overwritten them.
func (p *TextPins) lose(va GVA, got []byte) {
	for i := range got {
		if b, ours := p.own[va+GVA(i)]; ours && got[i] != b.is {
			p.drop(va + GVA(i))
		}
	}
}

// drop drops a byte.
func (p *TextPins) drop(va GVA) {
	page := va &^ (page4K - 1)
	delete(p.own, va)
	if p.count[page]--; p.count[page] == 0 {
		p.idle = append(p.idle, page)
	}
}

// Sweep releases pages in which no byte is replaced any more. Bytes that are restored
// temporarily, with every vCPU out of guest mode, must be patched in the same memory
// again: call Sweep before or after that period.
func (p *TextPins) Sweep() {
	for _, page := range p.idle {
		if p.count[page] == 0 {
			delete(p.count, page)
			p.pages.Delete(page)
		}
	}
	p.idle = p.idle[:0]
}
