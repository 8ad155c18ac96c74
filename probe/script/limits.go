package script

import (
	"slices"
	"strings"
)

// limits rejects values that maps cannot hold.
func (c *checker) limits() error {
	for _, m := range c.maps {
		if err := c.checkMapKind(m); err != nil {
			return err
		}
	}
	c.maps = slices.DeleteFunc(c.maps, func(m *mapDef) bool {
		unused := m.limit > 0 && m.keyed == 0
		if unused {
			c.warnOnce(m.Span, "Unused map: %s", m.name)
		}
		return unused
	})
	for _, m := range c.maps {
		if m.keyed == 0 || m.value.Kind == None {
			return c.undefinedMapError(m.Span, m.name)
		}
		switch n := m.keyBytes(); {
		case m.value.bytes() == 0:
			return c.errorAt(m.Span, "the values of %s have no bytes", m.name)
		case m.keyed == 2 && n == 0:
			return c.errorAt(m.Span, "the keys of %s have no bytes", m.name)
		case n > maxKey:
			return c.errorAt(m.Span, "the key of %s has %d bytes: at most %d", m.name, n, maxKey).hint("str(POINTER, LENGTH) has a shorter string")
		}
	}
	return nil
}

// mapKinds are the kinds of maps that a script can declare. Each vCPU has its own values exactly if the map aggregates.
var mapKinds = []string{"hash", "lruhash", "percpuhash", "percpulruhash"}

// checkMapKind checks the declared kind of a map, if any.
func (c *checker) checkMapKind(m *mapDef) error {
	switch {
	case m.limit == 0:
	case !slices.Contains(mapKinds, m.declared.text):
		return c.errorAt(m.declared.Span, "Invalid map type: %s", m.declared.text).hint("there are hash(ENTRIES) and lruhash(ENTRIES)")
	case strings.HasPrefix(m.declared.text, "percpu") && m.value.Kind != None && !m.value.isAggregate():
		kind := strings.TrimPrefix(m.declared.text, "percpu")
		return c.errorAt(m.declared.Span, "Incompatible map types. Type from declaration: %s. Type from value/key type: %s", m.declared.text, kind).hint("write %s(%d)", kind, m.limit)
	}
	return nil
}

// maxKey is the largest key of a map in bytes (bpf.MaxKeySize).
const maxKey = 512

// keyBytes is the size of a map's key, without a bucket.
func (m *mapDef) keyBytes() int { return Type{Kind: Tuple, Elems: m.key}.bytes() }
