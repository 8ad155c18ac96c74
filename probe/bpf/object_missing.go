package bpf

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// ownTypes returns the structures that are keys and values of the object's maps and that
// the kernel does not have, or nil. Programs may mark accesses to them for
// relocation too, for a tool that gives their fields other places when it loads the object;
// here the maps have them as the object does.
func ownTypes(spec *ebpf.CollectionSpec, k *Kernel) (*btf.Spec, error) {
	var own []btf.Type
	seen := map[string]bool{}
	for _, name := range sortedKeys(spec.Maps) {
		for _, t := range []btf.Type{spec.Maps[name].Key, spec.Maps[name].Value} {
			if t == nil {
				continue
			}
			s, ok := btf.UnderlyingType(t).(*btf.Struct)
			if ok && s.Name != "" && !seen[s.Name] && !k.has(s.Name) {
				seen[s.Name] = true
				own = append(own, s)
			}
		}
	}
	if len(own) == 0 {
		return nil, nil
	}
	b, err := btf.NewBuilder(own, nil)
	if err != nil {
		return nil, fmt.Errorf("types of maps: %w", err)
	}
	return b.Spec()
}

// has reports whether the kernel has a type of that name.
func (k *Kernel) has(name string) bool {
	if k == nil {
		return name == "pt_regs"
	}
	for _, s := range k.Types {
		if _, err := s.AnyTypesByName(name); err == nil {
			return true
		}
	}
	return name == "pt_regs"
}

// String names the kernel in messages.
func (k *Kernel) String() string {
	if k.Version == 0 {
		return "the guest's kernel"
	}
	return fmt.Sprintf("the guest's kernel (Linux %d.%d)", k.Version>>16, k.Version>>8&0xff)
}

// relocationText is how the parser formats a relocation.
var relocationText = regexp.MustCompile(`^CORERelocation\((\w+), (\w+):"([^"]*)"\[([0-9:]+)\], local_id=([0-9]+)\)$`)

// missingType says what a relocation does not find, and what to do.
func missingType(r *btf.CORERelocation, x *externs) string {
	k := x.kernel
	m := relocationText.FindStringSubmatch(r.String())
	if m == nil {
		return fmt.Sprintf("the guest's kernel does not have what it depends on: %v", r)
	}
	what, part := strings.ToLower(m[2])+" "+m[3], ""
	if id, err := strconv.ParseUint(m[5], 10, 32); err == nil && x.types != nil {
		if t, err := x.types.TypeByID(btf.TypeID(id)); err == nil {
			part = partOf(t, strings.Split(m[4], ":"))
		}
	}
	switch {
	case k == nil || len(k.Types) == 0:
		return fmt.Sprintf("it depends on %s, a kernel type (CO-RE) other than struct pt_regs, and no kernel's types are known: attach it to a Linux guest with types (BTF), or give bpf check the kernel by --kernel", what)
	case !k.has(m[3]):
		return fmt.Sprintf("the types (BTF) of %v have no %s: it is a type of a module that is not loaded, of another program, or of the tool that this object is for; use bpf_core_type_exists before", k, what)
	case m[2] == "Enum" && part != "":
		return fmt.Sprintf("%s of %v has no value %s: use bpf_core_enum_value_exists before", what, k, part)
	case part != "":
		return fmt.Sprintf("%s of %v has no field %s, or one of another type: use bpf_core_field_exists before", what, k, part)
	}
	return fmt.Sprintf("%s of %v is not like that of the object (%s): use bpf_core_type_matches before", what, k, m[1])
}

// partOf names the field or value that an accessor of a relocation leads to, "" if it is
// not known or the whole type. The first number of an accessor is that of an enumeration's
// value, or an index of the whole type.
func partOf(t btf.Type, accessor []string) string {
	var out strings.Builder
	for i, text := range accessor {
		n, err := strconv.Atoi(text)
		if err != nil {
			return ""
		}
		var members []btf.Member
		switch u := btf.UnderlyingType(t).(type) {
		case *btf.Enum:
			if i == 0 && n < len(u.Values) {
				return u.Values[n].Name
			}
			return ""
		case *btf.Array:
			if i > 0 {
				fmt.Fprintf(&out, "[%d]", n)
				t = u.Type
			}
			continue
		case *btf.Struct:
			members = u.Members
		case *btf.Union:
			members = u.Members
		}
		switch {
		case i == 0:
			continue
		case n >= len(members):
			return ""
		}
		if name := members[n].Name; name != "" && out.Len() > 0 {
			out.WriteString("." + name)
		} else {
			out.WriteString(name)
		}
		t = members[n].Type
	}
	return out.String()
}
