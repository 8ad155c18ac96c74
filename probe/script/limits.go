package script

import (
	"errors"
	"slices"
	"strings"

	"github.com/guestprobe/guestprobe/probe/bpf"
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

// checkMemory rejects maps that take more memory than an object may have.
func checkMemory(s *script, specs map[string]bpf.MapSpec, cpus int) error {
	var largest *mapDef
	most, total := 0, 0
	for _, m := range s.maps {
		n, err := specs[m.name].Memory(cpus)
		if errors.Is(err, bpf.ErrMapLimit) {
			n = bpf.MaxMapSize
		}
		if total += n; n > most {
			largest, most = m, n
		}
	}
	if total < bpf.MaxMapSize {
		return nil
	}
	is := specs[largest.name]
	return s.errorAt(largest.Span, "the maps take more than %d MiB, most of it %s: %d elements, with keys of %d bytes and values of %d", bpf.MaxMapSize>>20, largest.name, is.MaxEntries, is.KeySize, is.ValueSize).
		hint("use a smaller max_map_keys, let %s = hash(ENTRIES), or shorter strings (max_strlen)", largest.name)
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

// maxStrlen is the largest max_strlen: a program has room for one such string, as a
// key, with other values beside it.
const maxStrlen = 1 << 14

// maxTrailer bounds str_trunc_trailer.
const maxTrailer = 64

// maxKey is the largest key of a map in bytes (bpf.MaxKeySize).
const maxKey = bpf.MaxKeySize

// keyBytes is the size of a map's key, without a bucket.
func (m *mapDef) keyBytes() int { return Type{Kind: Tuple, Elems: m.key}.bytes() }
