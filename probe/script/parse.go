package script

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf/btf"
)

// parser makes the tree of a script, one token ahead.
type parser struct {
	*script
	lexer
	tok    token
	depth  int  // nesting depth
	tokens int  // read so far
	pred   bool // a slash before a brace ends the expression
	loops  int

	alignments   map[btf.Type]uint64 // of structures
	inDefinition bool                // of a type
	inPath       bool                // of a part of memory: ParsePath
	macro        *macro              // that is being read: its maps are parameters
	conditions   []Span              // #if and the like without an #endif so far
	importer     *importer
	endsOpen     bool // the last block ends with an expression without a semicolon
}

// maxDepth bounds how deep expressions and blocks nest.
const maxDepth = 64

// maxTokens bounds the words and operators of a script. The longest program that is accepted needs far fewer.
const maxTokens = 200_000

// Limits of the language, the same as bpftrace's.
const (
	maxUnroll  = 100
	maxBuckets = 1000
)

// parse makes the tree of a script. ofFile returns the types of the file that an attach point is in, or nil; it may be nil.
func parse(name, text string, files []File, params []string, types Types, ofFile func(*attachPoint) Types, stop func() error) (*script, error) {
	all := newSource(name, text, files)
	named, params := takeNamed(all.text, params)
	s := &script{source: all.sourceOf(0), params: params, named: named, byName: map[string]*mapDef{}, types: types, guest: types, filesTypes: ofFile, defined: map[cName]btf.Type{}, enumerators: map[string]enumerator{}, macros: map[string][]*macro{}, effort: effort{stop: stop}}
	s.config = config{maxKeys: 4096, maxString: 64, maxProbes: defaultPoints, trailer: "..", printMaps: true, missing: "error", stackMode: stackModes[0]}
	im, err := newImporter(all, text, files)
	if err != nil {
		return nil, err
	}
	p := &parser{script: s, lexer: lexer{src: s.source}, alignments: map[btf.Type]uint64{}, importer: im}
	err = p.program()
	s.source = all
	if err == nil {
		err = p.checkNamed()
	}
	if err == nil {
		err = s.addJoin()
	}
	if err == nil {
		err = s.expandMacros()
	}
	return s, err
}

func (p *parser) advance() (err error) {
	if p.tokens++; p.tokens > maxTokens {
		return p.errorAt(p.tok.Span, "a script of more than %d words and operators", maxTokens).hint("split it into several scripts")
	}
	if err := p.effort.step(); err != nil {
		return err
	}
	p.tok, err = p.next()
	return err
}

func (p *parser) isOp(op string) bool  { return p.tok.kind == tokOp && p.tok.text == op }
func (p *parser) isWord(w string) bool { return p.tok.kind == tokIdent && p.tok.text == w }
func (p *parser) describe() string {
	switch p.tok.kind {
	case tokEOF:
		if p.inPath {
			return "end of the type"
		}
		return "end of the script"
	case tokString:
		return "string " + strconv.Quote(p.tok.text)
	}
	return strconv.Quote(p.tok.text)
}

// expect takes an operator, or returns an error.
func (p *parser) expect(op string) error {
	if !p.isOp(op) {
		return p.errorAt(p.tok.Span, "syntax error, unexpected %s, expecting %q", p.describe(), op)
	}
	return p.advance()
}

// nest counts a level of nesting while f runs.
func (p *parser) nest(f func() error) error {
	if p.depth++; p.depth > maxDepth {
		return p.errorAt(p.tok.Span, "nested too deep: at most %d levels", maxDepth)
	}
	defer func() { p.depth-- }()
	return f()
}

// program reads the whole script. An attach point is read from the beginning of its
// first word.
func (p *parser) program() error {
	for {
		if err := p.skip(); err != nil {
			return err
		}
		begin := p.pos
		if strings.HasPrefix(p.text[begin:], "#") {
			if err := p.directive(begin); err != nil {
				return err
			}
			continue
		}
		if err := p.advance(); err != nil {
			return err
		}
		var err error
		switch {
		case p.tok.kind == tokEOF && len(p.conditions) > 0:
			return p.errorAt(p.conditions[0], "#if without #endif")
		case p.tok.kind == tokEOF:
			if len(p.probes) == 0 && p.importer.file == 0 {
				return p.errorAt(Span{From: 0, To: 1}, "no probes in the script").hint("a script is PROBE { STATEMENTS }, as kprobe:vfs_read { @[comm] = count(); }")
			}
			return nil
		case p.isOp(";"):
		case p.importer.isHeader() && !beginsType(p):
			return p.errorAt(p.tok.Span, "%s in a header", p.describe()).hint("a .h file has definitions of types and lines of C's preprocessor; write macros, maps and probes in a .bt file")
		case p.isWord("import"):
			err = p.importer.read(p)
		case p.isWord("config") && p.follows("="):
			err = p.configBlock()
		case p.isWord("let"):
			p.importer.begun = true
			err = p.letMap()
		case p.isWord("macro"):
			p.importer.begun = true
			err = p.macroDef()
		case p.isWord("fn"), p.isWord("subprog"):
			return p.errorAt(p.tok.Span, "%s is not supported", p.tok.text).hint("write macro NAME($x, @y, z) { ... } in the script itself")
		case beginsType(p):
			err = p.typeDefinition()
		case p.tok.kind == tokIdent, p.tok.kind == tokParam, p.isOp("*"), p.isOp("?"), p.isOp("["): // the last three begin a pattern for probe types
			p.importer.begun, p.pos = true, begin
			err = p.probe()
		default:
			return p.errorAt(p.tok.Span, "syntax error, unexpected %s, expecting a probe", p.describe())
		}
		if err != nil {
			return err
		}
	}
}

// beginsType reports whether the next word begins the definition of a type.
func beginsType(p *parser) bool {
	return p.isWord("struct") || p.isWord("union") || p.isWord("enum") || p.isWord("typedef")
}

// follows reports whether the next token is this operator.
func (p *parser) follows(op string) bool {
	at := p.pos
	t, err := p.next()
	p.pos = at
	return err == nil && t.kind == tokOp && t.text == op
}

// configBlock reads config = { NAME = VALUE; ... }.
func (p *parser) configBlock() error {
	at := p.tok.Span
	if err := p.advance(); err != nil {
		return err
	}
	if err := p.advance(); err != nil {
		return err
	}
	if err := p.expect("{"); err != nil {
		return err
	}
	for !p.isOp("}") {
		if p.importer.file > 0 {
			return p.errorAt(at, "invalid `config` within import").hint("write it in the script that is run")
		}
		name := p.tok
		if name.kind != tokIdent {
			return p.errorAt(name.Span, "syntax error, unexpected %s, expecting a setting", p.describe())
		}
		if err := p.advance(); err != nil {
			return err
		}
		if err := p.expect("="); err != nil {
			return err
		}
		if err := p.applySetting(name, p.tok); err != nil {
			return err
		}
		if err := p.advance(); err != nil {
			return err
		}
		if p.isOp("}") {
			break
		}
		if err := p.expect(";"); err != nil {
			return err
		}
	}
	return nil // the next iteration reads the text after the brace
}

// tuning are the settings of bpftrace's config blocks for its own programs, buffers
// and symbols: they are accepted, and have no effect.
var tuning = []string{
	"cache_user_symbols", "cpp_demangle", "lazy_symbolication", "license", "log_size", "max_bpf_progs", "max_cat_bytes", "on_stack_limit",
	"perf_rb_pages", "symbol_source", "use_blazesym", "cat_bytes_max", "no_cpp_demangle",
	"unstable_import", "unstable_import_statement", "unstable_map_decl", "unstable_addr", "unstable_dw_ustack", "unstable_macro", "unstable_tseries", "unstable_typeinfo",
}

// tuningNumbers are the settings of tuning whose value is a number.
var tuningNumbers = []string{"log_size", "max_bpf_progs", "max_cat_bytes", "on_stack_limit", "perf_rb_pages", "cat_bytes_max"}

// licenses are those with which the kernel lets programs call its helpers (include/linux/license.h). Here they have no effect.
var licenses = []string{"GPL", "GPL v2", "GPL and additional rights", "Dual BSD/GPL", "Dual MIT/GPL", "Dual MPL/GPL"}

// settings are the valid settings of config blocks.
var settings = []string{"max_map_keys", "max_probes", "max_strlen", "print_maps_on_exit", "missing_probes", "stack_mode", "strict", "show_debug_info", "str_trunc_trailer"}

// applySetting applies one setting.
func (p *parser) applySetting(name, value token) error {
	key := strings.ToLower(strings.TrimPrefix(name.text, "BPFTRACE_"))
	truth := func(into *bool) error {
		*into = value.num != 0 || value.text == "true"
		if value.text != "true" && value.text != "false" && (value.kind != tokInt || value.num > 1) {
			return p.errorAt(value.Span, "%s: want a number from 0 to 1", key)
		}
		return nil
	}
	number := func(least, most uint64) error {
		if value.kind != tokInt || value.num < least || value.num > most {
			return p.errorAt(value.Span, "%s: want a number from %d to %d", key, least, most)
		}
		return nil
	}
	switch key {
	case "max_map_keys":
		p.config.maxKeys = value.num
		return number(1, 1<<19)
	case "max_probes":
		if value.kind != tokInt {
			return p.errorAt(value.Span, "Invalid type for %s. Type: string. Expected Type: int", name.text)
		}
		p.config.maxProbes = int(value.num)
		return number(1, MaxPoints)
	case "max_strlen":
		p.config.maxString = int(value.num)
		return number(1, maxStrlen)
	case "str_trunc_trailer":
		p.config.trailer = value.text
		switch {
		case value.kind != tokString && value.kind != tokIdent:
			return p.errorAt(value.Span, "Invalid type for %s. Type: int. Expected Type: string", name.text)
		case len(value.text) > maxTrailer:
			return p.errorAt(value.Span, "%s: a text of %d bytes: at most %d", key, len(value.text), maxTrailer)
		}
		return nil
	case "print_maps_on_exit":
		return truth(&p.config.printMaps)
	case "strict":
		return truth(&p.config.strict)
	case "show_debug_info":
		show := false
		err := truth(&show)
		p.config.noDebugInfo = !show
		return err
	case "stack_mode":
		p.config.stackMode = value.text
		if !slices.Contains(stackModes, value.text) {
			return p.errorAt(value.Span, "stack_mode: want %s", strings.Join(stackModes, ", "))
		}
		return nil
	case "missing_probes":
		p.config.missing = value.text
		if value.text != "error" && value.text != "warn" && value.text != "ignore" {
			return p.errorAt(value.Span, "missing_probes: want error, warn or ignore")
		}
		return nil
	}
	if key == "license" && (value.kind != tokString && value.kind != tokIdent || !slices.Contains(licenses, value.text)) {
		return p.errorAt(value.Span, "Invalid value for license. Found: %s", value.text).hint("there are %s", strings.Join(licenses, ", "))
	}
	if slices.Contains(tuning, key) {
		off := value.text == "false" || value.kind == tokInt && value.num == 0
		switch key {
		case "cpp_demangle":
			p.config.mangled = off
		case "no_cpp_demangle":
			p.config.mangled = !off
		}
		if slices.Contains(tuningNumbers, key) && value.kind != tokInt {
			return p.errorAt(value.Span, "Invalid type for %s. Type: string. Expected Type: int", name.text)
		}
		if value.kind != tokInt && value.kind != tokString && value.kind != tokIdent {
			return p.errorAt(value.Span, "syntax error, expecting a value for %s", name.text)
		}
		note := p.errorAt(name.Span, "%s has no effect here", name.text)
		p.notes = append(p.notes, fmt.Sprintf("%s:%d:%d: %s", note.Name, note.Line, note.Col, note.Message))
		return nil
	}
	err := p.errorAt(name.Span, "Unknown config variable: '%s'", name.text)
	if m := nearestName(key, settings); m != "" {
		return err.hint("did you mean %s?", m)
	}
	return err.hint("there are %s", strings.Join(settings, ", "))
}

// letMap reads let @NAME = hash(LIMIT).
func (p *parser) letMap() error {
	if err := p.advance(); err != nil {
		return err
	}
	name := p.tok
	if name.kind != tokMap {
		return p.errorAt(name.Span, "syntax error, unexpected %s, expecting a map", p.describe())
	}
	if err := p.advance(); err != nil {
		return err
	}
	if err := p.expect("="); err != nil {
		return err
	}
	kind := p.tok
	if kind.kind != tokIdent {
		return p.errorAt(kind.Span, "syntax error, unexpected %s, expecting a kind of map", p.describe())
	}
	if err := p.advance(); err != nil {
		return err
	}
	if err := p.expect("("); err != nil {
		return err
	}
	if p.tok.kind != tokInt || p.tok.num < 1 || p.tok.num > 1<<19 {
		return p.errorAt(p.tok.Span, "want a number of entries from 1 to %d", 1<<19)
	}
	m := p.mapDef(name.text, name.Span)
	if m.limit == 0 { // as in bpftrace the first declaration counts
		m.limit, m.declared, m.lru = p.tok.num, kind, strings.Contains(kind.text, "lru")
	}
	if err := p.advance(); err != nil {
		return err
	}
	return p.expectLast(")")
}

// expectLast is expect without reading another token: an attach point may follow.
func (p *parser) expectLast(op string) error {
	if !p.isOp(op) {
		return p.errorAt(p.tok.Span, "syntax error, unexpected %s, expecting %q", p.describe(), op)
	}
	return nil
}

// mapDef returns the map of that name.
func (p *parser) mapDef(name string, at Span) *mapDef {
	if p.byName[name] == nil {
		m := &mapDef{name: name, Span: at}
		p.byName[name] = m
		p.maps = append(p.maps, m)
	}
	return p.byName[name]
}

// probe reads attach points, a predicate, and a block.
func (p *parser) probe() (err error) {
	d := &probeDef{}
	defer func() {
		p.types = p.guest
		p.unsure = err != nil && p.filesTypes == nil && slices.ContainsFunc(d.points, func(a attachPoint) bool { return a.inFile() })
	}()
	for {
		t, err := p.place()
		if err != nil {
			return err
		}
		all, err := p.attachPoints(t)
		if err != nil {
			return err
		}
		d.points = append(d.points, all...)
		if err := p.skip(); err != nil {
			return err
		}
		if p.pos >= len(p.text) || p.text[p.pos] != ',' {
			break
		}
		p.pos++
	}
	d.Span = d.points[0].Span.join(d.points[len(d.points)-1].Span)
	d.types = p.typesFor(d)
	p.types = d.types
	if err := p.advance(); err != nil {
		return err
	}
	if p.isOp("/") {
		if err := p.advance(); err != nil {
			return err
		}
		p.pred = true
		d.cond, err = p.expr()
		p.pred = false
		if err != nil {
			return err
		}
		if err := p.expect("/"); err != nil {
			return err
		}
	}
	if !p.isOp("{") {
		return p.errorAt(p.tok.Span, "syntax error, unexpected %s, expecting { or /", p.describe())
	}
	d.body, err = p.block(true)
	p.probes = append(p.probes, d)
	return err
}
