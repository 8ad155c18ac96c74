package flow

import (
	crand "crypto/rand"
	"encoding/binary"
	"errors"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync"
)

// MaxScans is the maximum size of encoded Scans, in bytes. For one boot of Debian's kernel they have up to 12 MB.
const MaxScans = 16 << 20

// Scans are the results of scans of texts, by the hash of the scanned bytes. The hash has a secret key, so that a guest cannot
// make text with the hash of another text. Any goroutine may use them.
type Scans struct {
	seed [32]byte
	key  hashKey

	mu      sync.Mutex
	kept    map[scanID]*keptScan
	size    int // bytes that kept has when it is encoded
	changed func()
}

// scanID identifies a window: the hash of its bytes, its distance from the beginning of the text, and its length.
type scanID struct {
	sum [2]uint64
	at  uint64
	n   uint64
}

// keptScan is the table of one window.
type keptScan struct {
	table   []uint64
	checked bool // the table is valid: made by this process, or verified
	used    bool // used by this process
}

// NewScans returns empty Scans with a new key.
func NewScans() *Scans {
	s := &Scans{kept: map[scanID]*keptScan{}}
	_, _ = crand.Read(s.seed[:]) // never fails
	s.key = newHashKey(s.seed)
	return s
}

// OnChange sets a function that is called after each new scan, on the goroutine that scans. OnChange must be called at most once, before the Scans are used.
func (s *Scans) OnChange(f func()) { s.changed = f }

// identify returns the ID of the text p, which is at bytes after the beginning of the text.
func (s *Scans) identify(at uint64, p []byte) scanID {
	return scanID{s.key.sum(p), at, uint64(len(p))}
}

// find returns the table of a window. It deletes a table that cannot be the result of a scan.
func (s *Scans) find(id scanID) (table []uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.kept[id]
	if k == nil {
		return nil, false
	}
	if !k.checked {
		k.checked = true
		last := uint64(0)
		for _, c := range k.table {
			if c>>32 < last || c&(slid-1)-id.at >= id.n {
				delete(s.kept, id)
				s.size -= k.size()
				return nil, false
			}
			last = c >> 32
		}
	}
	k.used = true
	return k.table, true
}

// maxKept is the part of an encoded form that scans take.
const maxKept = MaxScans - scansHead - sumSize

// size returns the bytes that k has when it is encoded.
func (k *keptScan) size() int { return scanHead + 8*len(k.table) }

// keep adds the table of a window. A guest that changes its text again and again does not make the set grow: it drops others, first the
// ones of earlier processes.
func (s *Scans) keep(id scanID, table []uint64) {
	k := &keptScan{table, true, true}
	s.mu.Lock()
	if old := s.kept[id]; old != nil {
		s.size -= old.size()
	}
	for _, used := range []bool{false, true} {
		for id, old := range s.kept {
			if s.size+k.size() <= maxKept {
				break
			}
			if old.used == used {
				delete(s.kept, id)
				s.size -= old.size()
			}
		}
	}
	s.kept[id] = k
	s.size += k.size()
	changed := s.changed
	s.mu.Unlock()
	if changed != nil {
		changed()
	}
}

// The encoded form: the magic, the seed, the scans, and the hash of everything before it. Numbers are little-endian and have 64 bits.
const (
	scansMagic = "gpscans\x01" // the last byte is the version
	scanHead   = 5 * 8         // hash, place, length, number of candidates
	scansHead  = len(scansMagic) + 32
	sumSize    = 16
)

// Encode encodes the scans: first the ones that this process used, then the others as far as MaxScans allows.
func (s *Scans) Encode() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := make([]scanID, 0, len(s.kept))
	for id := range s.kept {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b scanID) int {
		if x, y := s.kept[a].used, s.kept[b].used; x != y {
			return map[bool]int{true: -1, false: 1}[x]
		}
		return slices.Compare([]uint64{a.at, a.n, a.sum[0], a.sum[1]}, []uint64{b.at, b.n, b.sum[0], b.sum[1]})
	})
	out := append([]byte(scansMagic), s.seed[:]...)
	le := binary.LittleEndian
	for _, id := range ids {
		table := s.kept[id].table
		if len(out)+scanHead+8*len(table)+sumSize > MaxScans {
			continue
		}
		for _, n := range []uint64{id.sum[0], id.sum[1], id.at, id.n, uint64(len(table))} {
			out = le.AppendUint64(out, n)
		}
		for _, c := range table {
			out = le.AppendUint64(out, c)
		}
	}
	sum := s.key.sum(out)
	return le.AppendUint64(le.AppendUint64(out, sum[0]), sum[1])
}

var errScans = errors.New("the file is damaged, or of another version")

// DecodeScans decodes the output of Encode. It does not keep b.
func DecodeScans(b []byte) (*Scans, error) {
	le := binary.LittleEndian
	if len(b) < scansHead+sumSize || len(b) > MaxScans || string(b[:len(scansMagic)]) != scansMagic {
		return nil, errScans
	}
	s := &Scans{kept: map[scanID]*keptScan{}}
	copy(s.seed[:], b[len(scansMagic):])
	s.key = newHashKey(s.seed)
	body, end := b[:len(b)-sumSize], b[len(b)-sumSize:]
	if s.key.sum(body) != [2]uint64{le.Uint64(end), le.Uint64(end[8:])} {
		return nil, errScans
	}
	for body = body[scansHead:]; len(body) > 0; {
		if len(body) < scanHead {
			return nil, errScans
		}
		id := scanID{[2]uint64{le.Uint64(body), le.Uint64(body[8:])}, le.Uint64(body[16:]), le.Uint64(body[24:])}
		n := le.Uint64(body[32:])
		if body = body[scanHead:]; n > uint64(len(body))/8 || id.at >= 1<<31 || id.n > scanSize+scanMore {
			return nil, errScans
		}
		table := make([]uint64, n)
		for k := range table {
			table[k] = le.Uint64(body[8*k:])
		}
		if s.kept[id] != nil {
			return nil, errScans // no set has a window twice
		}
		s.kept[id] = &keptScan{table: table}
		s.size += s.kept[id].size()
		body = body[8*n:]
	}
	return s, nil
}

// hashKey is the key of a hash. For a window of text, with up to hashBlock bytes, the hash is NH with 64-bit words (Black et al., UMAC: Fast and
// Secure Message Authentication, CRYPTO 1999): two different texts of the same length, chosen without knowledge of the key, have equal hashes with a probability
// of at most 2^-64. For a file, which is longer, it only detects damage.
type hashKey []uint64

const hashBlock = scanSize + scanMore

func newHashKey(seed [32]byte) hashKey {
	r, key := rand.NewChaCha8(seed), make(hashKey, hashBlock/8+2)
	for k := range key {
		key[k] = r.Uint64()
	}
	return key
}

// sum returns the hash of p.
func (key hashKey) sum(p []byte) (sum [2]uint64) {
	more := key[len(key)-2:]
	for len(p) > 0 {
		block := p[:min(len(p), hashBlock)]
		p = p[len(block):]
		lo, hi := key.sumBlock(block)
		if sum != [2]uint64{} { // combine with the hash of the previous blocks
			h, l := bits.Mul64(sum[0]+more[0], sum[1]+more[1])
			lo, hi = lo+l, hi^h
		}
		sum = [2]uint64{lo, hi}
	}
	return sum
}

// sumBlock returns the NH of at most hashBlock bytes.
func (key hashKey) sumBlock(p []byte) (lo, hi uint64) {
	le := binary.LittleEndian
	var c uint64
	k := 0
	for ; len(p) >= 16; p, k = p[16:], k+2 {
		h, l := bits.Mul64(le.Uint64(p)+key[k], le.Uint64(p[8:16])+key[k+1])
		lo, c = bits.Add64(lo, l, 0)
		hi += h + c
	}
	if len(p) > 0 {
		var last [16]byte
		copy(last[:], p)
		h, l := bits.Mul64(le.Uint64(last[:])+key[k], le.Uint64(last[8:])+key[k+1])
		lo, c = bits.Add64(lo, l, 0)
		hi += h + c
	}
	return lo, hi
}
