package command

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

type inner struct {
	Times int `json:"times"`
	On    *inner
}

type base struct {
	ID       int              `json:"id"`
	Name     string           `json:"name"`
	MaxAlive int              `json:"maxAlive"`
	Over     *inner           `json:"over,omitempty"`
	List     []inner          `json:"list"`
	Regs     map[string]inner `json:"regs"`
	Any      any              `json:"any"`
	hidden   int
	Words    []string          `json:"words"`
	Texts    map[string]string `json:"texts"`
}

type row struct{ base }

func (row) Arg(name string) string { return "<" + name + ">" }

func TestTemplate(t *testing.T) {
	rows := []row{
		{base{ID: 1, Name: "a\x1b[2J", MaxAlive: 7, Over: &inner{Times: 3}, List: []inner{{Times: 1}, {Times: 2}}, Regs: map[string]inner{"ax": {Times: 4}}, Any: "x", Words: []string{"p", "q"}}},
		{base{ID: 22, Name: "b"}},
	}
	for _, c := range []struct{ format, want string }{
		{`{{.Name}} {{.MaxAlive}}`, "a\\x1b[2J 7\nb 0\n"},
		{`{{.name}} {{.maxAlive}} {{.Id}}`, "a\\x1b[2J 7 1\nb 0 22\n"},
		{`{{.ID}}\t{{.Arg "fd"}}\n`, "1\t<fd>\n\n22\t<fd>\n\n"},
		{`{{with .over}}{{.times}}{{else}}none {{$.id}}{{end}}`, "3\nnone 22\n"},
		{`{{range $i, $e := .list}}{{$i}}={{$e.times}},{{end}}`, "0=1,1=2,\n\n"},
		{`{{range .List}}{{.Times}}{{end}}{{(index .List 0).Times}}`, "121\n"}, // the second row's list is empty: an error, see below
		{`{{.regs.ax.times}}`, "4\n0\n"},
		{`{{.Any}} {{.Any.Whatever}}`, ""},
		{`{{json .Over}} {{join .Words "+"}} {{upper "x"}}{{title "élan"}}{{pad "y" 1 -5}}{{truncate .Name 1}}`, `{"times":3,"On":null} p+q XÉlan ya` + "\nnull  XÉlan yb\n"},
		{`table {{.ID}}\t{{.MaxAlive}}\t{{if .Over}}{{.Over.Times}}{{end}}`, "ID   MAX-ALIVE   TIMES\n1    7           3\n22   0           \n"},
	} {
		var out bytes.Buffer
		r := &Run{Env: Env{Stdout: &out}}
		tmpl, err := parseTemplate(c.format, row{})
		if err != nil {
			t.Errorf("%s: %v", c.format, err)
			continue
		}
		r.template = tmpl
		err = PrintRows(r, rows)
		if short := c.want == "" || strings.Contains(c.format, "index"); (err != nil) != short {
			t.Errorf("%s: error %v", c.format, err)
		}
		if d := cmp.Diff(c.want, out.String()); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.format, d)
		}
	}
}

func TestTemplateRefused(t *testing.T) {
	const fields = "Any, Arg, ID, List, MaxAlive, Name, Over, Regs, Texts, Words"
	for format, want := range map[string]string{
		`{{.Nope}}`:                            "--format: no field .Nope; there are " + fields,
		`{{.hidden}}`:                          "--format: no field .hidden; there are " + fields,
		`{{.Over.Nope}}`:                       "--format: no field .Nope of .Over; there are On, Times",
		`{{.Over.On.on.Nope}}`:                 "--format: no field .Nope of .Over.On.On; there are On, Times",
		`{{if .Name}}{{else}}{{.x}}{{end}}`:    "--format: no field .x; there are " + fields,
		`{{range .List}}{{.x}}{{end}}`:         "--format: no field .x; there are On, Times",
		`{{range .List}}{{$.x}}{{end}}`:        "--format: no field .x; there are " + fields,
		`{{range $e := .List}}{{$e.x}}{{end}}`: "--format: no field .x; there are On, Times",
		`{{with $o := .Over}}{{$o.x}}{{end}}`:  "--format: no field .x; there are On, Times",
		`{{(.Over).x}}`:                        "--format: no field .x; there are On, Times",
		`{{json .x}}`:                          "--format: no field .x; there are " + fields,
		`{{.Name | len | .x}}`:                 "--format: no field .x; there are " + fields,
		`{{.List.x}}`:                          "--format: no field .x of .List, which is a list: {{range}} goes through it",
		`{{.ID.x}}`:                            "--format: no field .x of .ID, which has none",
		`{{.Name`:                              "--format: 1: unclosed action",
		`{{nope .}}`:                           `--format: 1: function "nope" not defined`,
	} {
		if _, err := parseTemplate(format, row{}); err == nil || err.Error() != want {
			t.Errorf("%s: %v\nwant %s", format, err, want)
		}
	}
	r := &Run{}
	var err error
	if r.template, err = parseTemplate(`{{.Over.Times}}`, row{}); err != nil {
		t.Fatal(err)
	}
	want := "--format: <.Over.Times>: not every row has that: {{with}} asks whether one does"
	if err := r.Row(&bytes.Buffer{}, row{}); err == nil || err.Error() != want {
		t.Errorf("a row without it: %v", err)
	}
}
