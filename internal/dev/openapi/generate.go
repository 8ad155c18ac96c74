package openapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	daemon "github.com/guestprobe/guestprobe/internal/server/http"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// Generate returns the document for the checkout in dir, whose source has the comments.
func Generate(dir string) ([]byte, error) {
	c, err := readComments(filepath.Join(dir, "probe", "remote", "api"))
	if err != nil {
		return nil, err
	}
	g := &generator{comments: c, asked: map[string]reflect.Type{}}
	collect(g.known, reflect.TypeFor[api.ErrorBody]())
	for _, r := range daemon.Records() {
		if r.Data != nil {
			collect(g.known, reflect.TypeOf(r.Data))
		}
	}
	for _, o := range daemon.Operations() {
		if o.Body != nil {
			collect(g.asked, reflect.TypeOf(o.Body.Of))
			collect(g.known, reflect.TypeOf(o.Body.Of))
		}
		for _, a := range o.Answers {
			if a.Of != nil {
				collect(g.known, reflect.TypeOf(a.Of))
			}
		}
	}
	var b bytes.Buffer
	b.WriteString("# Written by 'gpdev openapi .' from the routes and types of the daemon: do not edit it, run 'make generate'.\n")
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(g.document()); err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	return b.Bytes(), nil
}

// generator generates the document.
type generator struct {
	*comments
	asked             map[string]reflect.Type // structs that requests have
	bodies, responses []pair                  // components, by name, each once
}

// about is the description of the API.
const about = `The API of guestprobed, as HTTP/1.1 and JSON on a unix socket:

    curl --unix-socket /run/guestprobed/guestprobed.sock http://guestprobed/v1/guest

Every answer to a request of HTTP/1.x with a status of 400 or more has the body
ErrorBody. Input that is not such a request (its first line, a header, its length or
its version is not valid) gets a status of 400 or more and text/plain, and the
connection is closed. Fields,
codes and record types are added within v1, never renamed or removed; unknown
fields and query parameters of a request are errors. Addresses and register
values are strings (Hex). Streams are NDJSON: one Record per line, the first
of type start (events only), the last of type end; a stream without an end
record was cut off.

Each answer has a header %[1]s: MAJOR.MINOR, the level of the API that the daemon speaks. A client may
send that header with its own level: a client that is too old gets 426 client_too_old, except for /version. Without
the header every client is served. docs/stability.md says which parts of the API are stable.

The socket has mode 0660. Its peers are the daemon's own user, root, and the users and
the group that --allow-uid and --group name; everyone else gets 403 forbidden.

Besides the statuses of an operation, every request can get these: %[2]s.
`

func (g *generator) document() *yaml.Node {
	paths := g.paths()
	var common []string
	for _, s := range daemon.CommonRefusals() {
		common = append(common, fmt.Sprintf("%d (%s)", s.Status, s.Why))
	}
	g.response(answerName("Error"), block(pair{"description", "refused; nothing was changed"}, pair{"content", jsonContent(ref("schemas", "ErrorBody"), nil)}))
	return block(
		pair{"openapi", "3.1.0"},
		pair{"info", block(pair{"title", "guestprobed"}, pair{"version", api.V1}, pair{"description", fmt.Sprintf(about, api.LevelHeader, strings.Join(common, ", "))})},
		pair{"servers", list(false, []*yaml.Node{block(pair{"url", "http://guestprobed"})})},
		pair{"paths", block(paths...)},
		pair{"components", block(pair{"requestBodies", block(g.bodies...)}, pair{"responses", block(g.responses...)}, pair{"schemas", block(g.schemas()...)})},
	)
}

// inPath is a parameter of a path.
var inPath = regexp.MustCompile(`\{(\w+)\}`)

// paths generates the paths, in the order of the routes.
func (g *generator) paths() []pair {
	var order []string
	methods := map[string][]pair{}
	for _, o := range daemon.Operations() {
		if methods[o.Path] == nil {
			order = append(order, o.Path)
			var parameters []*yaml.Node
			for _, m := range inPath.FindAllStringSubmatch(o.Path, -1) {
				p := daemon.PathParameters()[m[1]]
				parameters = append(parameters, flow(pair{"name", m[1]}, pair{"in", "path"}, pair{"required", true}, pair{"description", p.Description}, pair{"schema", value(p)}))
			}
			if parameters != nil {
				methods[o.Path] = []pair{{"parameters", list(false, parameters)}}
			}
		}
		methods[o.Path] = append(methods[o.Path], pair{strings.ToLower(o.Method), g.operation(&o)})
	}
	var out []pair
	for _, path := range order {
		out = append(out, pair{path, block(methods[path]...)})
	}
	return out
}

// operation describes a method of a path.
func (g *generator) operation(o *daemon.Operation) *yaml.Node {
	var parameters []*yaml.Node
	for _, p := range o.Query {
		var required any
		if p.Required {
			required = true
		}
		parameters = append(parameters, flow(pair{"name", p.Name}, pair{"in", "query"}, pair{"required", required}, pair{"description", p.Description}, pair{"schema", value(p)}))
	}
	var body any
	if o.Body != nil {
		body = flow(ref("requestBodies", g.body(o.Body))...)
	}
	var responses []pair
	for _, a := range o.Answers {
		responses = append(responses, pair{strconv.Itoa(a.Status), g.answer(a)})
	}
	for _, status := range o.Refusals {
		responses = append(responses, pair{strconv.Itoa(status), flow(ref("responses", answerName("Error"))...)})
	}
	return block(pair{"operationId", o.ID}, pair{"summary", o.Summary}, pair{"description", o.Description}, pair{"parameters", list(false, parameters)}, pair{"requestBody", body}, pair{"responses", block(responses...)})
}

// value is the schema of a parameter.
func value(p daemon.Parameter) *yaml.Node {
	var is []pair
	switch p.Kind {
	case daemon.Texts:
		return flow(pair{"type", "array"}, pair{"items", flow(pair{"type", "string"})})
	case daemon.Flag:
		return flow(pair{"type", "boolean"}, pair{"default", false})
	case daemon.Number:
		is = append(is, pair{"type", "integer"})
		if p.Max != 0 {
			is = append(is, pair{"minimum", p.Min}, pair{"maximum", p.Max})
		}
	default:
		is = append(is, pair{"type", "string"}, pair{"enum", list(true, p.Enum)})
	}
	return flow(append(is, pair{"default", p.Default})...)
}

// body adds a body to the components, and returns its name.
func (g *generator) body(b *daemon.Body) string {
	name, content := reflect.TypeOf(b.Of).Name(), (*yaml.Node)(nil)
	if b.Media != "" {
		name, content = "SnapshotFile", flow(pair{b.Media, flow(pair{"schema", binary()})})
	} else {
		var examples []pair
		for _, x := range b.Examples {
			examples = append(examples, pair{x.Name, flow(pair{"value", example(x.Value)})})
		}
		content = jsonContent(ref("schemas", name), examples)
	}
	for _, p := range g.bodies {
		if p.key == name {
			return name
		}
	}
	g.bodies = append(g.bodies, pair{name, block(pair{"required", !b.Optional}, pair{"content", content})})
	return name
}

// answer describes an operation's answer, and adds the schemas that it refers to
// to the components.
func (g *generator) answer(a daemon.Answer) *yaml.Node {
	if a.Of == nil {
		return block(pair{"description", a.Description})
	}
	t := reflect.TypeOf(a.Of)
	name, description := a.Name, a.Description
	if name == "" {
		name = t.Name()
	}
	name = answerName(name)
	if description == "" {
		description, _, _ = strings.Cut(g.describeType(t), ". ")
		description = strings.TrimSuffix(description, ".")
	}
	var content []pair
	schema := flow(g.kind(t, "")...)
	if t == byteType {
		schema = binary()
	}
	for _, media := range a.Media {
		content = append(content, pair{media, flow(pair{"schema", schema})})
	}
	n := block(pair{"description", description}, pair{"content", flow(content...)})
	if content == nil {
		n = block(pair{"description", description}, pair{"content", jsonContent(g.kind(t, ""), nil)})
		if a.Example != nil {
			n = block(pair{"description", description}, pair{"content", block(pair{"application/json", block(pair{"schema", flow(g.kind(t, "")...)}, pair{"example", example(a.Example)})})})
		}
	}
	g.response(name, n)
	return flow(ref("responses", name)...)
}

// answerName is the name of an answer in the components. Generators of Go clients make
// one type of each schema and of each answer, so the two need different names.
func answerName(name string) string { return name + "Answer" }

// response adds an answer to the components.
func (g *generator) response(name string, n *yaml.Node) {
	for _, p := range g.responses {
		if p.key == name {
			return
		}
	}
	g.responses = append(g.responses, pair{name, n})
}

// jsonContent is a body that is JSON, with examples by name.
func jsonContent(schema []pair, examples []pair) *yaml.Node {
	if examples == nil {
		return flow(pair{"application/json", flow(pair{"schema", flow(schema...)})})
	}
	return block(pair{"application/json", block(pair{"schema", flow(schema...)}, pair{"examples", block(examples...)})})
}

// binary is the schema of a file.
func binary() *yaml.Node { return flow(pair{"type", "string"}, pair{"format", "binary"}) }

// example returns a value in JSON, which is YAML on one line.
func example(v any) *yaml.Node {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("BUG: example: %v", err))
	}
	var n yaml.Node
	if err := yaml.Unmarshal(b, &n); err != nil {
		panic(fmt.Sprintf("BUG: example: %v", err))
	}
	return n.Content[0]
}

// recordTypes are the types of records, recordNames the constants for them, recordData the schemas of their data.
func (g *generator) recordTypes() (out []string) {
	for _, r := range daemon.Records() {
		out = append(out, string(r.Type))
	}
	return out
}

func (g *generator) recordNames() (out []string) {
	for _, r := range daemon.Records() {
		for _, n := range g.values[kindType.Name()] {
			if v, _ := strconv.Unquote(g.consts[n].ExactString()); v == string(r.Type) {
				out = append(out, n)
			}
		}
	}
	return out
}

func (g *generator) recordData() *yaml.Node {
	var out []*yaml.Node
	for _, r := range daemon.Records() {
		if r.Data != nil {
			out = append(out, flow(g.kind(reflect.TypeOf(r.Data), "")...))
		}
	}
	return list(true, append(out, flow(pair{"description", "of type graph"})))
}
