package script

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// MapState is the contents of a map, as data: the states of one map in several guests
// can be added.
type MapState struct {
	Name     string         `json:"name"`
	Keyed    bool           `json:"keyed"`
	Kind     string         `json:"kind"` // kind of its values: count, hist, int and so on
	Signed   bool           `json:"signed,omitempty"`
	Bits     int            `json:"bits,omitempty"` // of hist
	Low      int64          `json:"low,omitempty"`  // of lhist
	High     int64          `json:"high,omitempty"` // of lhist; of tseries the number of intervals
	Step     int64          `json:"step,omitempty"` // of lhist; of tseries in nanoseconds
	Mode     string         `json:"mode,omitempty"` // of tseries
	Zeroed   bool           `json:"zeroed,omitempty"`
	Elements []ElementState `json:"elements"`
}

// ElementState is an element of a map: for an aggregation its numbers, otherwise its
// printed form.
type ElementState struct {
	Key    KeyState             `json:"key,omitzero"`
	Words  []uint64             `json:"words,omitempty"`  // of an aggregation, or the number of a numeric value
	Counts map[int]uint64       `json:"counts,omitempty"` // of a histogram, by bucket
	Series map[uint64][2]uint64 `json:"series,omitempty"` // by interval since 1970: value, and count or time
	Marked bool                 `json:"marked,omitempty"`
	Text   string               `json:"text,omitempty"` // of a value
	JSON   string               `json:"json,omitempty"` // the same as JSON
}

// KeyState is the key of an element.
type KeyState struct {
	Text  string   `json:"text,omitempty"`  // its printed parts
	JSON  string   `json:"json,omitempty"`  // its parts in JSON
	Order []string `json:"order,omitempty"` // its parts as bytes, which order and identify it
}

// MaxStateElements bounds the elements of all maps of a script in their states.
const MaxStateElements = 1 << 17

// States returns the current state of all maps, except those that the script does not
// want printed at its end; left is the number of elements over the limit.
func (p *Printer) States() (out []MapState, left int) {
	if !p.s.c.config.printMaps {
		return nil, 0
	}
	return p.states(p.entries)
}

// TakeStates returns the state of all maps, and removes all their elements, as
// TakeMaps does.
func (p *Printer) TakeStates() (out []MapState, left int, err error) {
	all, err := p.take()
	out, left = p.states(func(m *mapDef) []*entry { return all[m] })
	return out, left, err
}

func (p *Printer) states(entries func(*mapDef) []*entry) (out []MapState, left int) {
	room := MaxStateElements
	for _, m := range p.s.c.maps {
		t := m.value
		st := MapState{Name: m.name, Keyed: m.keyed == 2, Kind: kindNames[t.Kind], Signed: t.Signed, Mode: "", Zeroed: p.zeroed[m], Elements: []ElementState{}}
		switch t.Kind {
		case Hist:
			st.Bits = t.Size
		case LHist, TSeries:
			st.Low, st.High, st.Step = t.Low, t.High, t.Step
			if t.Kind == TSeries {
				st.Mode = t.Format
			}
		}
		es := entries(m)
		if len(es) > room {
			left += len(es) - room
			es = es[len(es)-room:] // the largest
		}
		room -= len(es)
		for _, e := range es {
			st.Elements = append(st.Elements, p.elementState(m, e))
		}
		out = append(out, st)
	}
	return out, left
}

func (p *Printer) elementState(m *mapDef, e *entry) ElementState {
	s := ElementState{Words: e.words, Counts: e.counts, Marked: e.marked}
	if m.keyed == 2 {
		t := Type{Kind: Tuple, Elems: m.key}
		s.Key = KeyState{Text: p.elements(t, e.key), JSON: p.jsonKey(t, e.key), Order: p.keyOrder(t, e.key, nil)}
	}
	if e.series != nil {
		s.Series = map[uint64][2]uint64{}
		for at, x := range e.series {
			s.Series[at] = [2]uint64{x.value, x.meta}
		}
	}
	if !m.isHist() && !m.value.isAggregate() {
		s.Text, s.JSON = p.text(m.value, e.value), p.json(m.value, e.value)
		if m.value.is(Int, Bool) {
			s.Words = []uint64{word(e.value)}
		}
	}
	return s
}

// keyOrder returns the parts of a key such that comparing their bytes orders keys as
// compareKeys does. Addresses and stacks of a guest are represented by their printed
// names.
func (p *Printer) keyOrder(t Type, key []byte, out []string) []string {
	for i, e := range t.Elems {
		d := key[t.offset(i):][:e.bytes()]
		switch {
		case e.Kind == Tuple:
			out = p.keyOrder(e, d, out)
		case e.isNumber() && !e.is(KSym, KStack, UStack):
			n := word(d)
			if e.Kind == Int && e.Signed {
				n ^= signBit
			}
			out = append(out, fmt.Sprintf("%016x", n))
		default:
			out = append(out, p.text(e, d))
		}
	}
	return out
}

// Total adds the maps of a script in several guests. The zero value is empty.
type Total struct {
	maps map[string]*sumMap
}

// sumMap is a map in a sum.
type sumMap struct {
	def     *mapDef
	like    MapState // without its elements
	zeroed  bool
	entries map[string]*entry
}

// Add adds the maps of the guest who: values that cannot be added are kept, with that
// name before their keys; "" is the only guest. It returns a problem for each state
// that it rejects.
func (s *Total) Add(who string, maps []MapState) (problems []string) {
	if s.maps == nil {
		s.maps = map[string]*sumMap{}
	}
	room := MaxStateElements
	for _, st := range maps {
		if room -= len(st.Elements); room < 0 {
			return append(problems, fmt.Sprintf("more than %d elements: the others are not in the sums", MaxStateElements))
		}
		like := st
		like.Elements, like.Zeroed = nil, false
		m := s.maps[st.Name]
		if m == nil {
			def, err := like.def(who != "")
			if err != nil {
				problems = append(problems, err.Error())
				continue
			}
			m = &sumMap{def: def, like: like, entries: map[string]*entry{}}
			s.maps[st.Name] = m
		}
		if !m.like.same(like) {
			problems = append(problems, fmt.Sprintf("%s is a map of %s there, and of %s elsewhere: it is not in the sums", st.Name, like.Kind, m.like.Kind))
			continue
		}
		m.zeroed = m.zeroed || st.Zeroed
		bad := 0
		for _, x := range st.Elements {
			if !m.add(who, x) {
				bad++
			}
		}
		if bad > 0 {
			problems = append(problems, fmt.Sprintf("%s has %d elements that make no sense", st.Name, bad))
		}
	}
	return problems
}

// mapName is the form of a map's name.
var mapName = regexp.MustCompile(`^@[A-Za-z0-9_]{0,255}$`)

// same reports whether elements of both can be added.
func (s MapState) same(o MapState) bool {
	return s.Keyed == o.Keyed && s.Kind == o.Kind && s.Signed == o.Signed && s.Bits == o.Bits && s.Low == o.Low && s.High == o.High && s.Step == o.Step && s.Mode == o.Mode
}

// def is the definition of a map by its state, whose sender is not trusted. If
// several is set, keys keep the values of different guests apart.
func (s MapState) def(several bool) (*mapDef, error) {
	k := slices.Index(kindNames[:], s.Kind)
	t := Type{Kind: Kind(max(k, 0)), Signed: s.Signed, Size: 8, Low: s.Low, High: s.High, Step: s.Step, Format: s.Mode}
	ok := k > 0
	if !mapName.MatchString(s.Name) {
		return nil, fmt.Errorf("%.60q is no name of a map", s.Name)
	}
	switch t.Kind {
	case Hist:
		t.Size = s.Bits
		ok = s.Bits >= 0 && s.Bits <= 5
	case LHist:
		ok = s.Step > 0 && s.High > s.Low && uint64(s.High-s.Low)/uint64(s.Step) <= 1000
	case TSeries:
		ok = s.Step > 0 && s.High > 0 && s.High <= maxIntervals
	}
	if !ok {
		return nil, fmt.Errorf("%s is no map that can be", s.Name)
	}
	m := &mapDef{name: s.Name, keyed: 1, value: t}
	if s.Keyed || several && !m.isHist() && !t.isAggregate() {
		m.keyed = 2
	}
	return m, nil
}

// add adds an element, and reports whether it could.
func (m *sumMap) add(who string, x ElementState) bool {
	t := m.def.value
	plain := !m.def.isHist() && !t.isAggregate()
	switch {
	case t.is(Int, Bool) && len(x.Words) != 1, !plain && !m.def.isHist() && len(x.Words) != t.bytes()/8, len(x.Series) > maxIntervals:
		return false
	case plain && !json.Valid([]byte(x.JSON)):
		return false // not printable as JSON
	}
	for b := range x.Counts {
		if b < 0 || b >= buckets(t) {
			return false
		}
	}
	if plain && who != "" {
		x.Key.Text, x.Key.JSON = strings.TrimSuffix(who+", "+x.Key.Text, ", "), strings.TrimSuffix(who+","+x.Key.JSON, ",")
		x.Key.Order = append([]string{who}, x.Key.Order...)
	}
	var id []byte
	for _, part := range x.Key.Order {
		id = append(binary.LittleEndian.AppendUint64(id, uint64(len(part))), part...)
	}
	e := m.entries[string(id)]
	if e == nil {
		e = &entry{state: &ElementState{Key: x.Key}, words: make([]uint64, len(x.Words)), counts: map[int]uint64{}}
		if m.def.value.Kind == TSeries {
			e.series = map[uint64]tick{}
		}
		m.entries[string(id)] = e
	}
	e.marked = e.marked || x.Marked
	switch {
	case plain:
		e.words, e.state.Text, e.state.JSON = x.Words, x.Text, x.JSON
		if len(x.Words) == 1 {
			e.value = binary.LittleEndian.AppendUint64(nil, x.Words[0])
		}
	case t.Kind == TSeries:
		for at, v := range x.Series {
			e.addTick(t, at, tick{v[0], v[1]})
		}
	case m.def.isHist():
		for b, n := range x.Counts {
			e.counts[b] += n
		}
		e.all = e.total()
	default:
		e.addWords(t, x.Words)
	}
	return true
}

// Print prints all maps as a script does at its end.
func (s *Total) Print(asJSON bool, write func(text string)) {
	p := Printer{asJSON: asJSON, write: write, zeroed: map[*mapDef]bool{}}
	all := make([]*sumMap, 0, len(s.maps))
	for _, m := range s.maps {
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b *sumMap) int { return cmp.Compare(a.def.name, b.def.name) })
	for _, m := range all {
		p.zeroed[m.def] = m.zeroed
		es := make([]*entry, 0, len(m.entries))
		for _, e := range m.entries {
			es = append(es, e)
		}
		slices.SortFunc(es, m.def.order)
		p.printMap(m.def, es, 0, 0, false)
	}
}
