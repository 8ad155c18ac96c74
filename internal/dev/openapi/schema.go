package openapi

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// Types that are not structs of ours.
var (
	hexType  = reflect.TypeFor[api.Hex]()
	timeType = reflect.TypeFor[time.Time]()
	rawType  = reflect.TypeFor[json.RawMessage]()
	byteType = reflect.TypeFor[[]byte]()
	kindType = reflect.TypeFor[api.RecordType]()
)

// collect adds the structs that a type refers to.
func collect(to map[string]reflect.Type, t reflect.Type) {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		collect(to, t.Elem())
	case reflect.Struct:
		if t == timeType || to[t.Name()] != nil || t.Name() == "" {
			return
		}
		to[t.Name()] = t
		for _, f := range reflect.VisibleFields(t) {
			if jsonName(f) != "" {
				collect(to, f.Type)
			}
		}
	}
}

// schemas generates the schemas of all known structs. Structs of requests are
// closed, because the daemon rejects unknown fields.
func (g *generator) schemas() []pair {
	out := []pair{
		{"Hex", block(pair{"type", "string"}, pair{"description", g.types["Hex"]}, pair{"pattern", "^0x[0-9a-f]{16}$"})},
		{"Code", g.codes()},
	}
	for _, name := range slices.Sorted(maps.Keys(g.known)) {
		out = append(out, pair{name, g.object(g.known[name])})
	}
	return out
}

// object is the schema of a struct.
func (g *generator) object(t reflect.Type) *yaml.Node {
	asked := g.asked[t.Name()] != nil
	var required []string
	var properties []pair
	for _, f := range reflect.VisibleFields(t) {
		name := jsonName(f)
		if name == "" {
			continue
		}
		// A struct that is part of a request is one of several forms of it, like ProbeSpec
		// in CreateProbes.
		if tag := f.Tag.Get("json"); !strings.Contains(tag, ",omit") && !(asked && len(f.Index) > 1) {
			required = append(required, name)
		}
		properties = append(properties, pair{name, g.property(t, f, asked)})
	}
	description := g.describeType(t)
	if t.Name() == "Record" {
		description += "\n\nTypes, and their data:\n" + g.describeConstants(g.recordNames())
	}
	var closed any
	if asked {
		closed = false
	}
	return block(pair{"type", "object"}, pair{"description", description}, pair{"additionalProperties", closed}, pair{"required", list(true, required)}, pair{"properties", block(properties...)})
}

// property is the schema of a field.
func (g *generator) property(t reflect.Type, f reflect.StructField, asked bool) *yaml.Node {
	owner := t
	for _, i := range f.Index[:len(f.Index)-1] {
		owner = owner.Field(i).Type
	}
	set := tags(f)
	is := g.kind(f.Type, set["enum"])
	switch {
	case set["type"] == "array":
		is = []pair{{"type", "array"}, {"items", flow(pair{"type", "object"})}}
	case t.Name() == "Record" && f.Name == "Type":
		is = append(is, pair{"enum", list(true, g.recordTypes())})
	case t.Name() == "Record" && f.Name == "Data":
		is = []pair{{"type", "object"}, {"anyOf", g.recordData()}}
	}
	for _, key := range bounds {
		if v, ok := set[key]; ok && (asked || key != "default") {
			is = append(is, pair{key, literal(v)})
		}
	}
	if asked && f.Type.Kind() == reflect.Bool && strings.Contains(f.Tag.Get("json"), ",omit") {
		is = append(is, pair{"default", false})
	}
	return flow(append(is, pair{"description", g.describeField(t, owner, f)})...)
}

// bounds are the keys of schemas that a tag may set.
var bounds = []string{"minimum", "maximum", "maxLength", "maxItems", "pattern", "default"}

// tags are the values, the type or the bounds of a field: its tag "openapi", of KEY=VALUE with commas between.
func tags(f reflect.StructField) map[string]string {
	out := map[string]string{}
	tag := f.Tag.Get("openapi")
	if tag == "" {
		return out
	}
	for s := range strings.SplitSeq(tag, ",") {
		k, v, ok := strings.Cut(s, "=")
		if !ok || k != "enum" && k != "type" && !slices.Contains(bounds, k) {
			panic(fmt.Sprintf("BUG: field %s has the tag %q, of which %q means nothing", f.Name, tag, s))
		}
		out[k] = v
	}
	return out
}

// literal is a number or a text.
func literal(s string) any {
	if n, err := strconv.Atoi(s); err == nil {
		return n
	}
	return s
}

// kind is the schema of a type, which may have a list of values.
func (g *generator) kind(t reflect.Type, enum string) []pair {
	switch t {
	case hexType:
		return ref("schemas", "Hex")
	case timeType:
		return []pair{{"type", "string"}, {"format", "date-time"}}
	case rawType:
		return nil
	case byteType:
		return []pair{{"type", "string"}, {"contentEncoding", "base64"}}
	}
	var values *yaml.Node
	if enum != "" {
		var all []any
		for s := range strings.SplitSeq(enum, "|") {
			all = append(all, literal(s))
		}
		values = list(true, all)
	}
	named := func(name string) []pair {
		if values == nil {
			return []pair{{"type", name}}
		}
		return []pair{{"type", name}, {"enum", values}}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return g.kind(t.Elem(), enum)
	case reflect.Struct:
		return ref("schemas", t.Name())
	case reflect.String:
		return named("string")
	case reflect.Bool:
		return named("boolean")
	case reflect.Float64:
		return named("number")
	case reflect.Int64:
		return append(named("integer"), pair{"format", "int64"})
	case reflect.Int, reflect.Int32, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return named("integer")
	case reflect.Slice:
		return []pair{{"type", "array"}, {"items", flow(g.kind(t.Elem(), enum)...)}}
	case reflect.Map:
		return []pair{{"type", "object"}, {"additionalProperties", flow(g.kind(t.Elem(), enum)...)}}
	case reflect.Interface:
		return nil
	}
	panic(fmt.Sprintf("BUG: no schema for %s", t))
}

// ref refers to a component of the document.
func ref(kind, name string) []pair {
	return []pair{{"$ref", "#/components/" + kind + "/" + name}}
}

// codes is the schema of api.Code, with the comment of each.
func (g *generator) codes() *yaml.Node {
	names := slices.Clone(g.values["Code"])
	text := func(n string) string { v, _ := strconv.Unquote(g.consts[n].ExactString()); return v }
	slices.SortFunc(names, func(a, b string) int { return strings.Compare(text(a), text(b)) })
	var all []string
	for _, n := range names {
		all = append(all, text(n))
	}
	return block(pair{"type", "string"}, pair{"description", "A stable, machine-readable reason. These are the daemon's own codes, with their statuses.\n" +
		"The engine's codes (not_boundary, blacklisted and so on, see package probe) come besides them.\n\n" + g.describeConstants(names)}, pair{"enum", list(false, all)})
}
