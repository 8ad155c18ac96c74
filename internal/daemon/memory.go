package daemon

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/types"
	"github.com/guestprobe/guestprobe/internal/api"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe/script"
)

// Limits of one request about memory: the world stands still for it.
const (
	defaultLook = 64
	maxLook     = api.MaxLook
)

func (s *server) getMemory(w http.ResponseWriter, r *http.Request) error {
	a, q, err := lookQuery(r)
	if err != nil {
		return err
	}
	live, err := boolQuery(q, "live")
	if err != nil {
		return err
	}
	symbols, err := boolQuery(q, "symbols")
	if err != nil {
		return err
	}
	n := uint64(defaultLook)
	length, given := q["length"]
	if given {
		if n, err = strconv.ParseUint(length, 0, 64); err != nil || n == 0 || n > maxLook {
			return badValue("length %q: not in 1 to %d", length, maxLook)
		}
	}
	var as *typed
	if text, ok := q["type"]; ok {
		if given {
			return badValue("length and type: the type says how long it is")
		}
		if as, err = s.typeNamed(text); err != nil {
			return err
		}
		n = as.size
	}
	out := api.Memory{Live: live}
	var b []byte
	err = s.look(func(l *machine.Look) error {
		addr, err := a.addr(s, l)
		if err != nil {
			return err
		}
		root, err := a.root(s, l)
		if err != nil {
			return err
		}
		if as != nil {
			addr += guest.GVA(as.offset)
		}
		b = make([]byte, n)
		k, err := l.Read(root, addr, b, live)
		if err != nil && (k == 0 || as != nil) {
			return err
		}
		if err != nil {
			out.Fault = err.Error()
		}
		b = b[:k]
		out.Addr, out.Symbol, out.Space = api.Hex(addr), s.near(addr), api.Hex(root)
		return nil
	})
	if err != nil {
		return err
	}
	out.Data = hex.EncodeToString(b)
	for off := 0; symbols && off+8 <= len(b); off += 8 {
		if name := s.near(guest.GVA(binary.LittleEndian.Uint64(b[off:]))); name != "" {
			out.Symbols = append(out.Symbols, api.Pointer{Offset: off, Symbol: name})
		}
	}
	if as != nil {
		out.Type, out.Text, out.Value = types.Text(as.t), as.print(b, false), []byte(as.print(b, true))
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}

func (s *server) putMemory(w http.ResponseWriter, r *http.Request) error {
	var req api.WriteMemory
	if err := readBody(w, r, &req, false); err != nil {
		return err
	}
	b, err := hex.DecodeString(req.Data)
	if err != nil || len(b) == 0 || len(b) > maxLook {
		return badValue("data: not 1 to %d bytes in hexadecimal", maxLook)
	}
	a := lookAt{at: req.At, vcpu: -1, task: -1, space: guest.GPA(req.Space)}
	for _, x := range []struct {
		from *int
		to   *int
	}{{req.VCPU, &a.vcpu}, {req.Task, &a.task}} {
		if x.from == nil {
			continue
		}
		if *x.to = *x.from; *x.to < 0 {
			return badValue("%d: no vCPU or task has a number below 0", *x.from)
		}
	}
	out := api.Memory{Data: req.Data}
	err = s.look(func(l *machine.Look) error {
		addr, err := a.addr(s, l)
		if err != nil {
			return err
		}
		root, err := a.root(s, l)
		if err != nil {
			return err
		}
		out.Addr, out.Symbol, out.Space = api.Hex(addr), s.near(addr), api.Hex(root)
		return l.Write(root, addr, b)
	})
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}

// typed is a type of the guest, or a member of one.
type typed struct {
	t      types.Type
	offset uint64 // bytes from where the type is to the member
	size   uint64
	field  types.Field // of a bit field
}

// print prints a value.
func (t *typed) print(b []byte, json bool) string {
	if t.field.Width != 0 {
		return script.CBits(t.t, b, t.field.Offset%8, t.field.Width, json)
	}
	return script.CValue(t.t, b, json)
}

// typeNamed finds a type by C's words, [struct|union|enum] NAME, and behind them members: .NAME.
func (s *server) typeNamed(text string) (*typed, error) {
	known := scriptTarget{st: s.probes}.Types()
	if known == nil {
		return nil, &api.Error{Code: api.CodeNoType, Errno: "EOPNOTSUPP", Message: "the guest's types are not known",
			Detail: "its image has no BTF, and no debug information: guestprobed --debug FILE"}
	}
	path := strings.Split(text, ".")
	name, tag := strings.Join(strings.Fields(path[0]), " "), types.TagNone
	tags := []types.Tag{types.TagNone, types.TagStruct, types.TagUnion, types.TagEnum}
	for _, one := range tags[1:] {
		if rest, ok := strings.CutPrefix(name, string(one)+" "); ok {
			name, tag, tags = rest, one, []types.Tag{one}
		}
	}
	var t types.Type
	for _, tag = range tags {
		if t = known.Named(tag, name); t != nil {
			break
		}
	}
	if t == nil {
		return nil, &api.Error{Code: api.CodeNoType, Errno: "ENOENT", Message: fmt.Sprintf("the guest has no type %q", path[0])}
	}
	out := &typed{t: t}
	for _, member := range path[1:] {
		f, found, structure := types.Member(out.t, member)
		if !found {
			why := types.Text(out.t) + " has no member " + strconv.Quote(member)
			if !structure {
				why = types.Text(out.t) + " is no structure"
			}
			return nil, &api.Error{Code: api.CodeNoType, Errno: "ENOENT", Message: why}
		}
		out.t, out.field = f.Type, f
		out.offset += f.Offset / 8
	}
	size, ok := types.Size(out.t)
	if w := out.field.Width; w != 0 {
		size = (out.field.Offset%8 + w + 7) / 8
	}
	if !ok || size == 0 || size > maxLook {
		return nil, badValue("%s has no size, or one that is not in 1 to %d", types.Text(out.t), maxLook)
	}
	out.size = size
	return out, nil
}
