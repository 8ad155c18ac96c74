package script

// MapValues is a map of a script as numbers.
type MapValues struct {
	Name     string
	Keyed    bool
	Elements []MapValue // as they are printed
	Other    int        // elements that are none: texts, tuples, series
}

// MapValue is an element of a map: a number, count and sum of stats(), or a histogram.
type MapValue struct {
	Key       string // its parts as JSON has them, of any bytes; "" in a map without
	Number    float64
	Stats     bool // Count and Sum are meant
	Count     uint64
	Sum       float64
	Histogram []Bucket // not nil: is meant
}

// Bucket is one of a histogram, of those that are in use and the empty one below, by which the first begins.
type Bucket struct {
	Max   float64 // the last that is in it
	Open  bool    // there is none
	Count uint64
}

// Values are all maps as they are now, with what a float64 has of their numbers.
func (p *Printer) Values() (out []MapValues) {
	for _, m := range p.s.c.maps {
		es := p.entries(m)
		if m.keyed == 1 && len(es) > 0 && !p.zeroed[m] && es[0].nothing() {
			continue // as it is not printed
		}
		v := MapValues{Name: m.name, Keyed: m.keyed == 2}
		for _, e := range es {
			x, ok := m.measure(e)
			if !ok {
				v.Other++
				continue
			}
			if v.Keyed {
				x.Key = p.jsonKey(Type{Kind: Tuple, Elems: m.key}, e.key)
			}
			v.Elements = append(v.Elements, x)
		}
		out = append(out, v)
	}
	return out
}

// measure returns what an element is in numbers, if anything.
func (m *mapDef) measure(e *entry) (x MapValue, ok bool) {
	t := m.value
	switch {
	case t.Kind == TSeries:
		return x, false
	case m.isHist():
		counts := m.buckets(e)
		x.Histogram = []Bucket{}
		if lo, hi, ok := span(counts); ok {
			for i := max(lo-1, 0); i <= hi; i++ {
				b := Bucket{Count: counts[i]}
				if b.Max, b.Open = lastOf(t, i); i < lo && b.Max == -1 {
					continue // who reads histograms takes 0 for where the first begins
				}
				x.Histogram = append(x.Histogram, b)
			}
		}
		return x, true
	case t.Kind == Stats:
		x.Stats, x.Count, x.Sum = true, e.words[1], float64(int64(e.words[0]))
		return x, true
	case t.isAggregate() || t.is(Int, Bool, Pointer):
		n := m.number(e)
		if x.Number = float64(n); !t.Signed && n < 0 {
			x.Number = float64(uint64(n))
		}
		return x, true
	}
	return x, false
}

// lastOf is the last value that a bucket has; open says that there is none.
func lastOf(t Type, i int) (last float64, open bool) {
	switch {
	case t.Kind == Hist && i == 0:
		return -1, false
	case t.Kind == Hist:
		return float64(edge(t.Size, i) - 1), false
	case i == buckets(t)-1:
		return 0, true
	}
	return float64(t.Low + int64(i)*t.Step - 1), false
}
