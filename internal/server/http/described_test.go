package http

import (
	"encoding"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// described finds operations by method and path.
var described = func() *http.ServeMux {
	mux := http.NewServeMux()
	for _, o := range Operations() {
		mux.Handle(o.Method+" "+o.Path, http.NotFoundHandler())
	}
	return mux
}()

// checkDescribed holds an answer against the operation: its status is one that the document has, and its body has the fields that
// the document requires, and no others.
func checkDescribed(t testing.TB, r *http.Request, status int, body string) {
	t.Helper()
	_, pattern := described.Handler(r)
	i := slices.IndexFunc(Operations(), func(o Operation) bool { return o.Method+" "+o.Path == pattern })
	if i < 0 {
		return
	}
	o := Operations()[i]
	if status >= http.StatusBadRequest {
		common := slices.ContainsFunc(CommonRefusals(), func(x Refusal) bool { return x.Status == status })
		if !common && !slices.Contains(o.Refusals, status) {
			t.Errorf("%s: status %d, which the document does not have there: %s", pattern, status, body)
		}
		return
	}
	n := slices.IndexFunc(o.Answers, func(a Answer) bool { return a.Status == status })
	if n < 0 {
		t.Errorf("%s: status %d, which the document does not have there", pattern, status)
		return
	}
	a := o.Answers[n]
	if a.Of == nil || a.Media != nil && a.Media[0] != mediaRecords {
		return
	}
	for line := range strings.Lines(body) {
		if err := checkFits(reflect.TypeOf(a.Of), line); err != nil {
			t.Errorf("%s: %v, in %.300s", pattern, err, line)
		}
		if a.Media == nil {
			continue
		}
		var rec api.Record
		if err := json.Unmarshal([]byte(line), &rec); err != nil {
			t.Errorf("%s: %v", pattern, err)
			continue
		}
		k := slices.IndexFunc(Records(), func(k RecordKind) bool { return k.Type == rec.Type })
		if k < 0 {
			t.Errorf("%s: a record of type %s, which the document does not have", pattern, rec.Type)
		} else if of := Records()[k].Data; of != nil {
			if err := checkFits(reflect.TypeOf(of), string(rec.Data)); err != nil {
				t.Errorf("%s: %s: %v, in %.300s", pattern, rec.Type, err, line)
			}
		}
	}
}

// checkFits reports whether a text is JSON of that type, as the document describes it.
func checkFits(t reflect.Type, text string) error {
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		return err
	}
	return fit(t, v, t.Name())
}

func fit(t reflect.Type, v any, where string) error {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	bad := func(want string) error { return fmt.Errorf("%s is %T, not %s", where, v, want) }
	switch {
	case t == reflect.TypeFor[json.RawMessage]() || t.Kind() == reflect.Interface:
		return nil
	case t == reflect.TypeFor[time.Time](), t == reflect.TypeFor[[]byte](), t.Kind() == reflect.String, reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()):
		if _, ok := v.(string); !ok {
			return bad("a string")
		}
	case t.Kind() == reflect.Bool:
		if _, ok := v.(bool); !ok {
			return bad("true or false")
		}
	case t.Kind() == reflect.Slice:
		list, ok := v.([]any)
		if !ok {
			return bad("an array")
		}
		for i, x := range list {
			if err := fit(t.Elem(), x, fmt.Sprintf("%s[%d]", where, i)); err != nil {
				return err
			}
		}
	case t.Kind() == reflect.Map, t.Kind() == reflect.Struct:
		m, ok := v.(map[string]any)
		if !ok {
			return bad("an object")
		}
		if t.Kind() == reflect.Struct {
			return fitFields(t, m, where)
		}
		for k, x := range m {
			if err := fit(t.Elem(), x, where+"."+k); err != nil {
				return err
			}
		}
	default:
		if _, ok := v.(float64); !ok {
			return bad("a number")
		}
	}
	return nil
}

func fitFields(t reflect.Type, m map[string]any, where string) error {
	known := map[string]bool{}
	for _, f := range reflect.VisibleFields(t) {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" {
			continue
		}
		known[name] = true
		x, ok := m[name]
		if !ok {
			if !strings.Contains(options, "omit") {
				return fmt.Errorf("%s has no %s", where, name)
			}
			continue
		}
		if err := fit(f.Type, x, where+"."+name); err != nil {
			return err
		}
	}
	for name := range m {
		if !known[name] {
			return fmt.Errorf("%s has %s, which the document does not have", where, name)
		}
	}
	return nil
}

// TestAnswersAreDescribed asks for everything that a GET without parameters answers; checkDescribed holds the answers of other tests too.
func TestAnswersAreDescribed(t *testing.T) {
	h := serveFake(t, nil)
	h.attach("p:a vfs_read", "r:b vfs_read $retval")
	for _, o := range Operations() {
		if o.Method != http.MethodGet || strings.Contains(o.Path, "{") || strings.HasSuffix(o.Path, "/events") {
			continue
		}
		path := o.Path
		if slices.ContainsFunc(o.Query, func(p Parameter) bool { return p.Required }) {
			path += "?at=vfs_read"
		}
		h.rawRequest(o.Method, path, "")
	}
}

// TestFits: the check finds what is missing, what is too much, and what is of another type.
func TestFits(t *testing.T) {
	for text, want := range map[string]string{
		`{"enabled":true}`:             "",
		`{"enabled":1}`:                "Knobs.enabled is float64, not true or false",
		`{}`:                           "Knobs has no enabled",
		`{"enabled":false,"other":{}}`: "Knobs has other, which the document does not have",
		`[]`:                           "Knobs is []interface {}, not an object",
	} {
		got := ""
		if err := checkFits(reflect.TypeFor[api.Knobs](), text); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
	if err := checkFits(reflect.TypeFor[api.ProbeList](), `{"probes":null}`); err == nil {
		t.Error("null is taken for an array")
	}
}
