package scripttest

import (
	"cmp"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"strings"
)

// mapKind is the use of a map in a random script; each has one name.
type mapKind struct {
	name string
	key  string // i: a number, s: a string
	call string // the aggregation, "" for values
	kind kind   // of these
}

var mapKinds = []mapKind{
	{"@a", "", "", signed}, {"@b", "", "", unsigned}, {"@c", "", "", text},
	{"@d", "i", "", signed}, {"@e", "s", "", signed}, {"@f", "is", "", unsigned}, {"@g", "i", "", text},
	{"@h", "", "count", 0}, {"@i", "s", "count", 0}, {"@j", "", "sum", 0}, {"@k", "is", "sum", 0},
	{"@l", "", "min", 0}, {"@m", "i", "min", 0}, {"@n", "", "max", 0}, {"@o", "s", "max", 0},
	{"@p", "", "avg", 0}, {"@q", "i", "avg", 0}, {"@r", "i", "stats", 0},
	{"@s", "", "hist", 0}, {"@t", "i", "hist", 0}, {"@u", "", "lhist", 0}, {"@v", "s", "lhist", 0},
}

// The linear histograms' arguments.
const low, high, step = 0, 100, 10

// element is the value of a key.
type element struct {
	key     []value
	value   value
	n       int64
	sum     int64
	low     int64
	high    int64
	buckets map[int]uint64
}

// state is a script's output, and its maps.
type state struct {
	printed strings.Builder
	of      map[string]map[string]*element
}

func newState() state { return state{of: map[string]map[string]*element{}} }

// elementAt finds an element, or creates it.
func (s *state) elementAt(m *mapKind, key []value, create bool) *element {
	id := fmt.Sprint(key)
	e := s.of[m.name][id]
	if e == nil && create {
		e = &element{key: key, buckets: map[int]uint64{}}
		if s.of[m.name] == nil {
			s.of[m.name] = map[string]*element{}
		}
		s.of[m.name][id] = e
	}
	return e
}

// key makes the key of an element: its text, and its value.
func (g *gen) key(m *mapKind) (string, func(h *hit) []value) {
	var parts []string
	var es []expr
	for _, k := range m.key {
		nested := g.Nested
		g.Nested = nested && k != 'i' // where it is not used
		e := g.textExpr()
		if g.Nested = nested; k == 'i' {
			n := g.plainNumber(g.numericExpr(2))
			e = expr{src: fmt.Sprintf("(int64)(%s & 7)", n.src), eval: func(h *hit) value { return value{n: n.eval(h).n & 7} }}
		}
		es, parts = append(es, e), append(parts, e.src)
	}
	return strings.Join(parts, ", "), func(h *hit) (vs []value) {
		for _, e := range es {
			vs = append(vs, e.eval(h))
		}
		return vs
	}
}

// elementText is the element as it is written.
func (m *mapKind) elementText(key string) string {
	if m.key == "" {
		return m.name
	}
	return m.name + "[" + key + "]"
}

// element makes an expression that reads a value in a map.
func (g *gen) element() (expr, bool) {
	m := &mapKinds[g.n(len(mapKinds))]
	if m.call != "" || m.kind == text || !g.known[m.name] {
		return expr{}, false
	}
	src, key := g.key(m)
	if g.portable && g.n(2) == 0 || m.key != "" && g.n(4) == 0 {
		if m.key == "" {
			return expr{}, false
		}
		if len(m.key) > 1 {
			src = "(" + src + ")"
		}
		return expr{kind: truth, src: fmt.Sprintf("has_key(%s, %s)", m.name, src), eval: func(h *hit) value { return truthValue(h.elementAt(m, key(h), false) != nil) }}, true
	}
	return expr{kind: m.kind, src: m.elementText(src), eval: func(h *hit) value {
		if e := h.elementAt(m, key(h), false); e != nil {
			return e.value
		}
		return value{}
	}}, true
}

// store changes an element.
func (g *gen) store() statement {
	m := &mapKinds[g.n(len(mapKinds))]
	src, key := g.key(m)
	known := g.known[m.name]
	defer func() { g.known[m.name] = true }()
	if m.call != "" {
		return g.aggregate(m, src, key)
	}
	if m.key != "" && g.n(6) == 0 {
		of := src
		if len(m.key) > 1 {
			of = "(" + src + ")"
		}
		// The type of a map without an assignment is not known.
		none := map[kind]string{signed: "(int64)0", unsigned: "(uint64)0", text: `""`}[m.kind]
		g.line("%s = %s; delete(%s, %s);", m.elementText(src), none, m.name, of)
		return func(h *hit) flow {
			h.elementAt(m, key(h), true).value = value{}
			delete(h.of[m.name], fmt.Sprint(key(h)))
			return on
		}
	}
	if m.kind != text && known && g.n(3) == 0 {
		e := g.exprOf(m.kind, 2)
		op := []string{"+", "-", "^", "|"}[g.n(4)]
		g.line("%s %s= %s;", m.elementText(src), op, e.src)
		return func(h *hit) flow {
			k := key(h)
			var was value
			if at := h.elementAt(m, k, false); at != nil {
				was = at.value
			}
			v := e.eval(h)
			h.elementAt(m, k, true).value = value{n: operate(op, was.n, v.n, true)}
			return on
		}
	}
	e := g.exprOf(m.kind, 3)
	g.line("%s = %s;", m.elementText(src), e.src)
	return func(h *hit) flow {
		v := e.eval(h)
		h.elementAt(m, key(h), true).value = v
		return on
	}
}

func (g *gen) aggregate(m *mapKind, src string, key func(*hit) []value) statement {
	known, nested := maps.Clone(g.known), g.nested
	e := g.exprOf(signed, 2)
	if m.call == "count" { // the code that was made for it is not in the script
		g.known, g.nested = known, nested
	}
	args := "(int64)" + e.src
	switch {
	case m.call == "count":
		args = ""
	case m.call == "lhist":
		args = fmt.Sprintf("%s, %d, %d, %d", args, low, high, step)
	}
	g.line("%s = %s(%s);", m.elementText(src), m.call, args)
	return func(h *hit) flow {
		v := int64(0)
		if m.call != "count" {
			v = e.eval(h).n
		}
		at := h.elementAt(m, key(h), true)
		if at.n == 0 {
			at.low, at.high = v, v
		}
		at.n, at.sum, at.low, at.high = at.n+1, at.sum+v, min(at.low, v), max(at.high, v)
		switch m.call {
		case "hist":
			at.buckets[bits.Len64(uint64(max(v, 0)))+b2i(v >= 0)]++ // bucket 0 counts values below 0
		case "lhist":
			at.buckets[int(min(max((v-low)/step+1, 1), (high-low)/step+1))*b2i(v >= low)]++
		}
		return on
	}
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// number returns the number by which an element is sorted, and as which it is
// printed.
func (e *element) number(m *mapKind) int64 {
	switch m.call {
	case "":
		return e.value.n
	case "count", "hist", "lhist":
		return e.n
	case "sum":
		return e.sum
	case "min":
		return e.low
	case "max":
		return e.high
	}
	return e.sum / e.n
}

// text is the value of an element as it is printed.
func (e *element) text(m *mapKind) string {
	switch {
	case m.call == "stats":
		return fmt.Sprintf("{ .count = %d, .average = %d, .total = %d }", e.n, e.sum/e.n, e.sum)
	case m.call == "" && m.kind == text:
		return e.value.s
	case m.call == "" && m.kind == unsigned:
		return fmt.Sprint(uint64(e.value.n))
	}
	return fmt.Sprint(e.number(m))
}

// maps prints all maps.
func (s *state) maps() string {
	var b strings.Builder
	for i := range mapKinds {
		m := &mapKinds[i]
		var es []*element
		for _, e := range s.of[m.name] {
			es = append(es, e)
		}
		slices.SortFunc(es, func(x, y *element) int {
			switch {
			case m.call == "" && m.kind == text:
			case m.call == "" && m.kind == unsigned:
				if d := cmp.Compare(uint64(x.value.n), uint64(y.value.n)); d != 0 {
					return d
				}
			default:
				if d := cmp.Compare(x.number(m), y.number(m)); d != 0 {
					return d
				}
			}
			for i, k := range x.key {
				if d := cmp.Or(cmp.Compare(k.n, y.key[i].n), strings.Compare(k.s, y.key[i].s)); d != 0 {
					return d
				}
			}
			return 0
		})
		for _, e := range es {
			var key []string
			for i, k := range m.key {
				if k == 'i' {
					key = append(key, fmt.Sprint(e.key[i].n))
				} else {
					key = append(key, e.key[i].s)
				}
			}
			name := m.elementText(strings.Join(key, ", "))
			if m.call == "hist" || m.call == "lhist" {
				b.WriteString(name + ":\n" + e.rows(m) + "\n")
			} else {
				b.WriteString(name + ": " + e.text(m) + "\n")
			}
		}
	}
	return b.String()
}

// rows returns the rows of a histogram.
func (e *element) rows(m *mapKind) string {
	first, last, most := 1<<30, 0, uint64(0)
	for i, n := range e.buckets {
		first, last, most = min(first, i), max(last, i), max(most, n)
	}
	var b strings.Builder
	for i := first; i <= last; i++ {
		label := logLabel(i)
		if m.call == "lhist" {
			switch lo := low + (i-1)*step; {
			case i == 0:
				label = fmt.Sprintf("(..., %d)", low)
			case lo == high:
				label = fmt.Sprintf("[%d, ...)", high)
			default:
				label = fmt.Sprintf("[%d, %d)", lo, lo+step)
			}
		}
		fmt.Fprintf(&b, "%-16s%8d |%-52s|\n", label, e.buckets[i], strings.Repeat("@", int(e.buckets[i]*52/most)))
	}
	return b.String()
}

// logLabel is the label of a power of two: 0 is below 0, 1 is 0, 2 is 1, 3 is 2 and 3.
func logLabel(i int) string {
	switch i {
	case 0:
		return "(..., 0)"
	case 1, 2:
		return fmt.Sprintf("[%d]", i-1)
	}
	return "[" + power(i-2) + ", " + power(i-1) + ")"
}

func power(p int) string {
	return fmt.Sprintf("%d%s", 1<<(p%10), []string{"", "K", "M", "G", "T", "P", "E"}[p/10])
}
