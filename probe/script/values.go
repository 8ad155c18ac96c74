package script

// MapValues is a map of a script as numbers.
type MapValues struct {
	Name     string
	Keyed    bool
	Elements []MapValue // in print order
	Other    int        // elements that are not numbers: texts, tuples, series
}

// MapValue is an element of a map: a number, count and sum of stats(), or a histogram.
type MapValue struct {
	Key       string // its parts in JSON, of any bytes; "" in a map without keys
	Number    float64
	Stats     bool // use Count and Sum
	Count     uint64
	Sum       float64
	Histogram []Bucket // not nil: use this
}

// Bucket is one of the buckets in use of a histogram, or the empty one below them,
// which is the lower bound of the first.
type Bucket struct {
	Max   float64 // the largest value in it
	Open  bool    // it has no upper bound
	Count uint64
}

// Values returns the current contents of all maps, with float64 precision.
func (p *Printer) Values() (out []MapValues) {
	for _, m := range p.s.c.maps {
		es := p.entries(m)
		if m.keyed == 1 && len(es) > 0 && !p.zeroed[m] && es[0].unchanged() {
			continue // it is not printed
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

// measure returns an element as numbers, if possible.
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
					continue // readers of histograms assume that the first one begins at 0
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

// lastOf is the largest value of a bucket; open says that it has no upper bound.
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
