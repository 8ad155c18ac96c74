package script

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// entry is one element of a map, with the values of all vCPUs merged.
type entry struct {
	key    []byte
	value  []byte          // of a map of values
	words  []uint64        // of an aggregation: one, or sum and count
	counts map[int]uint64  // of a histogram, by bucket
	all    uint64          // the sum of these
	marked bool            // see mapDef.isMarked
	series map[uint64]tick // by the number of the interval
	state  *ElementState   // not nil: an element of a sum, which has its printed key and value
}

// total is the number of values in a histogram.
func (e *entry) total() (n uint64) {
	for _, c := range e.counts {
		n += c
	}
	return n
}

// unchanged reports whether it has its initial value.
func (e *entry) unchanged() bool {
	return !e.marked && e.all == 0 && len(e.series) == 0 && !slices.ContainsFunc(e.words, func(w uint64) bool { return w != 0 })
}

// entries reads a map. The guest's contents are not trusted: the only consequence is
// wrong numbers.
func (p *Printer) entries(m *mapDef) (es []*entry) {
	b := p.maps(m.name)
	if b == nil {
		return nil
	}
	byKey := map[string]*entry{}
	n := m.keyBytes()
	b.Walk(func(key []byte, values [][]byte) bool {
		k := string(key[:min(n, len(key))])
		if m.keyed == 1 {
			k = ""
		}
		e := byKey[k]
		if e == nil {
			e = &entry{key: []byte(k)}
			byKey[k] = e
			es = append(es, e)
		}
		m.merge(e, key, values)
		return true
	})
	if m.isHist() {
		for _, e := range es {
			e.all = e.total()
		}
		es = slices.DeleteFunc(es, func(e *entry) bool { return m.keyed == 2 && e.all == 0 && len(e.series) == 0 })
	}
	es = slices.DeleteFunc(es, func(e *entry) bool { return p.kept[m][string(e.key)] && e.unchanged() })
	slices.SortStableFunc(es, func(a, b *entry) int { return m.order(a, b) })
	return es
}

// merge adds the values of one element of the bpf map to an entry.
func (m *mapDef) merge(e *entry, key []byte, values [][]byte) {
	t := m.value
	switch {
	case t.Kind == TSeries:
		e.mergeSeries(t, values)
	case m.isHist():
		if e.counts == nil {
			e.counts = map[int]uint64{}
		}
		i := uint64(0)
		if m.keyed == 2 {
			i = word(key[m.keyBytes():])
		} else {
			i = uint64(key[0]) | uint64(key[1])<<8 | uint64(key[2])<<16 | uint64(key[3])<<24
		}
		for _, v := range values {
			if n := word(v); n > 0 && i < uint64(buckets(t)) {
				e.counts[int(i)] += n
			}
		}
	case t.isAggregate():
		e.words = make([]uint64, t.bytes()/8)
		of := make([]uint64, len(e.words))
		for _, v := range values {
			for i := range of {
				of[i] = word(v[8*i:])
			}
			e.addWords(t, of)
		}
	default:
		e.value = append([]byte(nil), values[0][:t.bytes()]...)
	}
	for _, v := range values {
		e.marked = e.marked || m.isMarked() && word(v[t.bytes():]) != 0
	}
}

// addWords adds the words of another part of an aggregation.
func (e *entry) addWords(t Type, words []uint64) {
	for i, w := range words {
		if t.is(Min, Max) {
			e.words[i] = max(e.words[i], w)
		} else {
			e.words[i] += w
		}
	}
}

// number is the number that an element is ordered and printed by, if it has one.
func (m *mapDef) number(e *entry) int64 {
	t := m.value
	switch {
	case t.is(Min, Max) && e.words[1] == 0:
		return 0 // no value yet
	case t.is(Min, Max):
		return unrank(t, e.words[0])
	case t.is(Avg, Stats):
		return average(t, e.words[0], e.words[1])
	case t.isAggregate():
		return int64(e.words[0])
	}
	return int64(word(e.value))
}

// average rounds toward zero.
func average(t Type, sum, n uint64) int64 {
	switch {
	case n == 0:
		return 0
	case t.Signed && int64(n) > 0:
		return int64(sum) / int64(n)
	}
	return int64(sum / n)
}

// order is the print order of elements: by value, if it is a number, and then by key.
func (m *mapDef) order(a, b *entry) int {
	d := 0
	switch {
	case m.isHist():
		d = cmp.Compare(a.all, b.all)
	case m.value.isAggregate() || m.value.is(Int, Bool):
		x, y := m.number(a), m.number(b)
		if d = cmp.Compare(x, y); !m.value.Signed && m.value.Kind != Count {
			d = cmp.Compare(uint64(x), uint64(y))
		}
	}
	switch {
	case d != 0:
		return d
	case a.state != nil:
		return slices.Compare(a.state.Key.Order, b.state.Key.Order)
	}
	return compareKeys(Type{Kind: Tuple, Elems: m.key}, a.key, b.key)
}

// compareKeys compares the parts of keys from left to right.
func compareKeys(t Type, a, b []byte) int {
	for i, e := range t.Elems {
		at, n := t.offset(i), e.bytes()
		x, y := a[at:][:n], b[at:][:n]
		d := 0
		switch {
		case e.Kind == Tuple:
			d = compareKeys(e, x, y)
		case e.Kind == String:
			d = strings.Compare(stringOf(x), stringOf(y))
		case e.Kind == Int && e.Signed:
			d = cmp.Compare(int64(word(x)), int64(word(y)))
		case e.isNumber():
			d = cmp.Compare(word(x), word(y))
		default:
			d = bytes.Compare(x, y)
		}
		if d != 0 {
			return d
		}
	}
	return 0
}

// PrintMaps prints all maps, as at the end of a script, except where the script
// disables that.
func (p *Printer) PrintMaps() {
	if !p.asJSON {
		p.write("\n\n")
	}
	if p.s.c.config.printMaps {
		p.Maps()
	}
}

// Maps prints all maps as they are now.
func (p *Printer) Maps() { p.printMaps(p.entries) }

func (p *Printer) printMaps(entries func(*mapDef) []*entry) {
	for _, m := range slices.SortedFunc(slices.Values(p.s.c.maps), func(a, b *mapDef) int { return strings.Compare(a.name, b.name) }) {
		p.printMap(m, entries(m), 0, 0, false)
	}
}

// TakeMaps prints all maps, and removes all their elements: values that were not
// printed come the next time.
func (p *Printer) TakeMaps() error {
	all, err := p.take()
	p.printMaps(func(m *mapDef) []*entry { return all[m] })
	return err
}

// take removes all elements of all maps.
func (p *Printer) take() (all map[*mapDef][]*entry, err error) {
	all = map[*mapDef][]*entry{}
	p.hold(func(idle bool) {
		for _, m := range p.s.c.maps {
			all[m] = p.entries(m)
			err = cmp.Or(err, p.empty(m, true, idle))
		}
	})
	return all, err
}

// printMap prints elements of a map, or the last top of them; asked says that the
// script requested it, even if the map is empty.
func (p *Printer) printMap(m *mapDef, es []*entry, top int, div int64, asked bool) {
	if top > 0 && len(es) > top {
		es = es[len(es)-top:]
	}
	if m.keyed == 1 && len(es) > 0 && (!asked && !p.zeroed[m] || m.isHist() && !p.asJSON) && es[0].unchanged() {
		return
	}
	if div == 0 {
		div = 1
	}
	if p.asJSON {
		p.jsonMap(m, es, div)
		return
	}
	first, last := shownRange(m.value, es)
	for _, e := range es {
		name := m.name
		if m.keyed == 2 {
			name += "[" + p.keyText(m, e) + "]"
		}
		if m.value.Kind == TSeries {
			p.write(name + ":\n" + seriesText(m.value, e, first, last))
			continue
		}
		if m.isHist() {
			p.write(name + ":\n" + histText(m.value, m.buckets(e), uint64(div)))
			continue
		}
		p.write(name + ": " + p.value(m, e, div) + "\n")
	}
}

// buckets returns the counts of all buckets of an element.
func (m *mapDef) buckets(e *entry) []uint64 {
	counts := make([]uint64, buckets(m.value))
	for i, n := range e.counts {
		counts[i] = n
	}
	return counts
}

// value prints the value of an element that is not a histogram.
func (p *Printer) value(m *mapDef, e *entry, div int64) string {
	t := m.value
	switch {
	case t.Kind == Stats:
		return fmt.Sprintf("{ .count = %d, .average = %d, .total = %d }", e.words[1]/uint64(div), m.number(e)/div, int64(e.words[0])/div)
	case t.isAggregate() && !t.Signed:
		return fmt.Sprint(uint64(m.number(e)) / uint64(div))
	case t.isAggregate():
		return fmt.Sprint(m.number(e) / div)
	case t.Kind == Int && div != 1 && t.Signed:
		return fmt.Sprint(int64(word(e.value)) / div)
	case t.Kind == Int && div != 1:
		return fmt.Sprint(word(e.value) / uint64(div))
	case e.state != nil:
		return e.state.Text
	}
	return p.text(t, e.value)
}

// keyText prints the key of an element.
func (p *Printer) keyText(m *mapDef, e *entry) string {
	if e.state != nil {
		return e.state.Key.Text
	}
	return p.elements(Type{Kind: Tuple, Elems: m.key}, e.key)
}

// keyJSON prints it in JSON.
func (p *Printer) keyJSON(m *mapDef, e *entry) string {
	if e.state != nil {
		return e.state.Key.JSON
	}
	return p.jsonKey(Type{Kind: Tuple, Elems: m.key}, e.key)
}

// jsonMap prints a map as JSON.
func (p *Printer) jsonMap(m *mapDef, es []*entry, div int64) {
	kind := "map"
	switch m.value.Kind {
	case Hist, LHist:
		kind = "hist"
	case Stats, Avg:
		kind = "stats"
	case TSeries:
		kind = "tseries"
	}
	if m.keyed == 2 && len(es) == 0 {
		return
	}
	first, last := shownRange(m.value, es)
	one := func(e *entry) string {
		switch {
		case m.value.Kind == TSeries:
			return seriesJSON(m.value, e, first, last)
		case m.isHist():
			return histJSON(m.value, m.buckets(e), uint64(div))
		case m.value.Kind == Stats:
			return fmt.Sprintf(`{"count": %s, "average": %s, "total": %s}`, jsonUint(e.words[1]/uint64(div)), jsonInt(m.number(e)/div), jsonInt(int64(e.words[0])/div))
		case m.value.isAggregate() && !m.value.Signed:
			return jsonUint(uint64(m.number(e)) / uint64(div))
		case m.value.isAggregate():
			return jsonInt(m.number(e) / div)
		case m.value.Kind == Int && div != 1 && m.value.Signed:
			return jsonInt(int64(word(e.value)) / div)
		case m.value.Kind == Int && div != 1:
			return jsonUint(word(e.value) / uint64(div))
		case e.state != nil:
			return e.state.JSON
		}
		return p.json(m.value, e.value)
	}
	data := "null"
	switch {
	case m.keyed == 1 && len(es) > 0:
		data = one(es[0])
	case m.keyed == 2:
		var parts []string
		for _, e := range es {
			parts = append(parts, jsonText(p.keyJSON(m, e))+": "+one(e))
		}
		data = "{" + strings.Join(parts, ", ") + "}"
	}
	p.write(fmt.Sprintf("{\"type\": %q, \"data\": {%s: %s}}\n", kind, jsonText(m.name), data))
}
