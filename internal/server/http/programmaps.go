package http

import (
	"encoding/binary"
	"encoding/hex"
	"net/http"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/session"
)

func (ph *probeHost) getMaps(w http.ResponseWriter, r *http.Request) error {
	out := api.MapList{Maps: []api.MapInfo{}}
	for _, m := range ph.probes.Maps() {
		out.Maps = append(out.Maps, wireMap(&m))
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}

// wireMap describes a map.
func wireMap(m *session.MapInfo) api.MapInfo {
	return api.MapInfo{
		ID: m.ID, Name: m.Name, Kind: m.Spec.Kind.String(), KeySize: int(m.Spec.KeySize), ValueSize: int(m.Spec.ValueSize), Entries: int(m.Spec.MaxEntries),
		Bytes: m.Bytes, PerCPU: m.PerCPU, ReadOnly: m.Spec.ReadOnly, Shared: m.Shared, Hist: m.Hist, Probes: m.Probes,
	}
}

func (ph *probeHost) getMap(w http.ResponseWriter, r *http.Request) error {
	d, err := ph.dumpMap(r.PathValue("map"))
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, d)
	return nil
}

// dumpMap copies the contents of a map.
func (ph *probeHost) dumpMap(name string) (d api.MapDump, err error) {
	err = ph.probes.ReadMap(name, func(info session.MapInfo, m *bpf.Map) error {
		d = ph.dump(&info, m)
		return nil
	})
	return d, err
}

// dump copies the contents of a map, which is not freed during that time.
func (ph *probeHost) dump(info *session.MapInfo, m *bpf.Map) api.MapDump {
	d := api.MapDump{MapInfo: wireMap(info)}
	spec := info.Spec
	if spec.Kind == bpf.RingBuf {
		s := m.RingStats()
		d.Ring = &api.MapRing{Read: s.Read, Lost: s.Lost, Discarded: s.Discarded, Corrupted: s.Corrupted, Pending: s.Pending}
		return d
	}
	d.Lost = bpf.LostValues(m)
	d.Values = []api.MapEntry{}
	names := newNamer(ph.guest)
	m.Walk(func(key []byte, vals [][]byte) bool {
		size := len(key) + len(vals)*len(vals[0])
		if spec.Kind == bpf.StackTrace {
			size *= 32 // with the names of addresses
		}
		if len(d.Values) == api.MaxMapEntries || dumpSize(&d, size) > maxDump {
			d.Truncated = true
			return false
		}
		e := api.MapEntry{Key: hex.EncodeToString(key), KeyData: spec.KeyType.JSON(key)}
		for _, v := range vals {
			e.Values = append(e.Values, hex.EncodeToString(v))
			if data := spec.ValueType.JSON(v); data != nil {
				e.Data = append(e.Data, data)
			}
		}
		if spec.Kind == bpf.StackTrace {
			e.Stack = names.frames(addresses(vals[0]), true)
		}
		d.Values = append(d.Values, e)
		return true
	})
	if d.Hist {
		if h, err := m.Hist(); err == nil {
			d.Buckets = []api.MapBucket{}
			lo, hi, ok := h.Range()
			for i := lo; ok && i <= hi; i++ {
				a, b := bpf.HistBounds(i)
				d.Buckets = append(d.Buckets, api.MapBucket{Low: api.Hex(a), High: api.Hex(b), Count: h[i]})
			}
		}
	}
	return d
}

// addresses decodes a stack: 8 bytes for each address, zeros after the last one.
func addresses(stack []byte) (pcs []guest.GVA) {
	for ; len(stack) >= 8; stack = stack[8:] {
		pc := guest.GVA(binary.LittleEndian.Uint64(stack))
		if pc == 0 {
			break
		}
		pcs = append(pcs, pc)
	}
	return pcs
}

// maxDump bounds the bytes of keys and values in one dump.
const maxDump = 16 << 20

// dumpSize returns the size of a dump with one more entry of n bytes.
func dumpSize(d *api.MapDump, n int) int { return (len(d.Values) + 1) * n }
