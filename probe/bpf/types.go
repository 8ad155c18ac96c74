package bpf

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"strings"

	"github.com/cilium/ebpf/btf"
)

// Type is an object's description of keys, values or records.
type Type struct{ t btf.Type }

// newType returns the type, nil if t is not a type of values.
func newType(t btf.Type) *Type {
	if _, void := t.(*btf.Void); t == nil || void {
		return nil
	}
	return &Type{t}
}

// Limits of the text of one value.
const (
	maxScalars = 1 << 16
	maxNesting = 16
)

var errNotWritten = errors.New("not to be written by its type")

// JSON formats bytes by the type: structures as objects with their fields in order,
// characters as texts, values of enumerations by name, pointers and anything without
// a number as texts in hexadecimal. It is nil if the bytes do not match the type, or
// the type is nil.
func (t *Type) JSON(b []byte) json.RawMessage {
	if t == nil {
		return nil
	}
	if n, err := btf.Sizeof(t.t); err != nil || n != len(b) {
		return nil
	}
	w := typeWriter{left: maxScalars}
	if w.value(t.t, b, 0) != nil {
		return nil
	}
	return w.out
}

type typeWriter struct {
	out  []byte
	left int // scalars
}

func (w *typeWriter) text(s string) {
	b, _ := json.Marshal(s) // a text has no error
	w.out = append(w.out, b...)
}

func (w *typeWriter) value(t btf.Type, b []byte, depth int) error {
	if w.left--; w.left < 0 || depth > maxNesting {
		return errNotWritten
	}
	switch t := btf.UnderlyingType(t).(type) {
	case *btf.Struct:
		return w.fields(t.Members, b, depth)
	case *btf.Union:
		return w.fields(t.Members, b, depth)
	case *btf.Datasec:
		var ms []btf.Member
		for _, v := range t.Vars {
			if x, ok := v.Type.(*btf.Var); ok {
				ms = append(ms, btf.Member{Name: x.Name, Type: x.Type, Offset: btf.Bits(8 * v.Offset)})
			}
		}
		return w.fields(ms, b, depth)
	case *btf.Array:
		return w.array(t, b, depth)
	case *btf.Int:
		return w.number(t, b)
	case *btf.Enum:
		return w.enum(t, b)
	case *btf.Pointer:
		if len(b) != 8 {
			return errNotWritten
		}
		w.text("0x" + strconv.FormatUint(binary.LittleEndian.Uint64(b), 16))
		return nil
	case *btf.Float:
		return w.float(b)
	}
	return errNotWritten
}

func (w *typeWriter) float(b []byte) error {
	f, bits := 0.0, 8*len(b)
	switch len(b) {
	case 4:
		f = float64(math.Float32frombits(binary.LittleEndian.Uint32(b)))
	case 8:
		f = math.Float64frombits(binary.LittleEndian.Uint64(b))
	default:
		return errNotWritten
	}
	if math.IsNaN(f) || math.IsInf(f, 0) {
		w.text(strconv.FormatFloat(f, 'g', -1, bits))
		return nil
	}
	w.out = strconv.AppendFloat(w.out, f, 'g', -1, bits)
	return nil
}

// isFloat reports whether an integer type is in truth a floating-point type, as
// written by tools without BTF_KIND_FLOAT (pahole without --btf_gen_floats): their
// names are not names of integers.
func isFloat(t *btf.Int) bool {
	return t.Name == "float" && t.Size == 4 || t.Name == "double" && t.Size == 8
}

// fields writes the members of a structure; members of an unnamed member are included
// among them.
func (w *typeWriter) fields(ms []btf.Member, b []byte, depth int) error {
	w.out = append(w.out, '{')
	if err := w.members(ms, b, depth, new(bool)); err != nil {
		return err
	}
	w.out = append(w.out, '}')
	return nil
}

func (w *typeWriter) members(ms []btf.Member, b []byte, depth int, some *bool) error {
	for _, m := range ms {
		part, err := member(&m, b)
		if err != nil {
			return err
		}
		if m.Name == "" {
			inner, ok := btf.UnderlyingType(m.Type).(*btf.Struct)
			if u, is := btf.UnderlyingType(m.Type).(*btf.Union); is {
				inner, ok = &btf.Struct{Members: u.Members}, true
			}
			if w.left--; w.left < 0 || depth > maxNesting {
				return errNotWritten
			}
			if ok {
				if err := w.members(inner.Members, part, depth+1, some); err != nil {
					return err
				}
			}
			continue
		}
		if *some {
			w.out = append(w.out, ',')
		}
		*some = true
		w.text(m.Name)
		w.out = append(w.out, ':')
		if err := w.value(m.Type, part, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// member returns the bytes of a member; for a bit field a number of its type.
func member(m *btf.Member, b []byte) ([]byte, error) {
	n, err := btf.Sizeof(m.Type)
	if err != nil {
		return nil, errNotWritten
	}
	if m.BitfieldSize == 0 {
		at := int64(m.Offset) / 8
		if m.Offset%8 != 0 || n < 0 || at+int64(n) > int64(len(b)) {
			return nil, errNotWritten
		}
		return b[at : at+int64(n)], nil
	}
	if n > 8 || m.BitfieldSize > 64 || uint64(m.Offset)+uint64(m.BitfieldSize) > 8*uint64(len(b)) {
		return nil, errNotWritten
	}
	var v uint64
	for i := range m.BitfieldSize {
		bit := m.Offset + i
		v |= uint64(b[bit/8]>>(bit%8)&1) << i
	}
	if t, ok := btf.UnderlyingType(m.Type).(*btf.Int); ok && t.Encoding == btf.Signed {
		unused := 64 - m.BitfieldSize
		v = uint64(int64(v<<unused) >> unused)
	}
	return binary.LittleEndian.AppendUint64(nil, v)[:n], nil
}

func (w *typeWriter) array(t *btf.Array, b []byte, depth int) error {
	n, err := btf.Sizeof(t.Type)
	if err != nil || n <= 0 || len(b)%n != 0 {
		return errNotWritten
	}
	if e, ok := btf.UnderlyingType(t.Type).(*btf.Int); ok && n == 1 && (e.Encoding == btf.Char || e.Encoding == btf.Signed) {
		end := 0
		for end < len(b) && b[end] != 0 {
			end++
		}
		w.text(string(b[:end]))
		return nil
	}
	w.out = append(w.out, '[')
	for i := 0; i < len(b); i += n {
		if i > 0 {
			w.out = append(w.out, ',')
		}
		if err := w.value(t.Type, b[i:i+n], depth+1); err != nil {
			return err
		}
	}
	w.out = append(w.out, ']')
	return nil
}

// integer reads a signed or unsigned number of 1, 2, 4 or 8 bytes.
func integer(b []byte, signed bool) (uint64, bool) {
	switch len(b) {
	case 1, 2, 4, 8:
	default:
		return 0, false
	}
	var full [8]byte
	copy(full[:], b)
	n, unused := binary.LittleEndian.Uint64(full[:]), 64-8*len(b)
	if signed {
		n = uint64(int64(n<<unused) >> unused)
	}
	return n, true
}

func (w *typeWriter) number(t *btf.Int, b []byte) error {
	if isFloat(t) {
		return w.float(b)
	}
	signed := t.Encoding == btf.Signed || t.Encoding == btf.Char
	n, ok := integer(b, signed)
	switch {
	case !ok:
		w.text(hex.EncodeToString(b))
	case t.Encoding == btf.Bool:
		w.out = strconv.AppendBool(w.out, n != 0)
	case signed:
		w.out = strconv.AppendInt(w.out, int64(n), 10)
	default:
		w.out = strconv.AppendUint(w.out, n, 10)
	}
	return nil
}

func (w *typeWriter) enum(t *btf.Enum, b []byte) error {
	n, ok := integer(b, t.Signed)
	if !ok {
		return errNotWritten
	}
	for _, v := range t.Values {
		if v.Value == n || len(b) < 8 && uint32(v.Value) == uint32(n) {
			w.text(v.Name)
			return nil
		}
	}
	if t.Signed {
		w.out = strconv.AppendInt(w.out, int64(n), 10)
	} else {
		w.out = strconv.AppendUint(w.out, n, 10)
	}
	return nil
}

// recordTypes returns the named structures of a file, by size, if only one has that
// size: records of a ring without a type of its own are one of them.
func recordTypes(spec *btf.Spec) map[int]*Type {
	if spec == nil {
		return nil
	}
	byType := map[int]*Type{}
	for t, err := range spec.All() {
		s, ok := t.(*btf.Struct)
		if err != nil || !ok || s.Name == "" || s.Name == "pt_regs" || s.Name == "guestprobe_return" || ofLinux(s.Name) {
			continue
		}
		n := int(s.Size)
		if _, twice := byType[n]; twice {
			byType[n] = nil
		} else {
			byType[n] = newType(s)
		}
	}
	return byType
}

// ofLinux reports whether a structure is one of Linux's for programs (linux/bpf.h,
// bpf_experimental.h), which a file has because a function's parameters mention it.
func ofLinux(structure string) bool {
	switch structure {
	case "bpf_dynptr", "bpf_spin_lock", "bpf_res_spin_lock", "bpf_timer", "bpf_wq", "bpf_refcount", "bpf_list_head", "bpf_list_node", "bpf_rb_root", "bpf_rb_node", "bpf_cpumask":
		return true
	}
	return strings.HasPrefix(structure, "bpf_iter_")
}
