package script

import (
	"cmp"
	"path"
	"slices"
	"strings"
)

// sourcePart is the text of the script, or of a file, in source.text.
type sourcePart struct {
	from, to int
	name     string // in errors
}

// newSource joins the texts of the script and of its files, with a new line after each that is not part of it.
func newSource(name, text string, files []File) *source {
	s := &source{name: name, text: text}
	if len(files) == 0 {
		return s
	}
	var b strings.Builder
	add := func(name, text string) {
		s.parts = append(s.parts, sourcePart{b.Len(), b.Len() + len(text), name})
		b.WriteString(text)
		b.WriteByte('\n')
	}
	add(name, text)
	for _, f := range files {
		add(besideScript(name, f.Name), f.Text)
	}
	s.text = b.String()
	return s
}

// part is the part that has a position.
func (s *source) part(at int) sourcePart {
	for _, p := range slices.Backward(s.parts) {
		if at >= p.from {
			p.to = min(p.to, len(s.text))
			return p
		}
	}
	return sourcePart{0, len(s.text), s.name}
}

// sourceOf is the source up to the end of a part, for a parser that begins at its beginning.
func (s *source) sourceOf(part int) *source {
	if len(s.parts) == 0 {
		return s
	}
	p := s.parts[part]
	return &source{name: s.name, text: s.text[:p.to], from: p.from, parts: s.parts}
}

// importer is the state of a script's imports.
type importer struct {
	all    *source // the whole text
	files  []File
	taken  map[string]bool  // names of parts that were imported
	byPath map[string][]int // numbers of the files, in order of their names, by their paths and by their folders

	// Of the part that is read:
	file  int  // its number; 0: the script
	begun bool // it has had a probe, a macro or a map: no import may follow
}

// newImporter checks the files of a script.
func newImporter(all *source, script string, files []File) (*importer, error) {
	im := &importer{all: all, files: files, taken: map[string]bool{path.Clean(all.name): true}, byPath: map[string][]int{}}
	at := Span{From: 0, To: 1}
	if len(files) > MaxFiles {
		return im, all.errorAt(at, "a script with %d files: at most %d", len(files), MaxFiles)
	}
	size, what := len(script), "a script"
	names := map[string]bool{}
	for i, f := range files {
		name := besideScript(all.name, f.Name)
		switch {
		case f.Name == "" || len(f.Name) > maxFileName:
			return im, all.errorAt(at, "the name of a file has %d bytes: want 1 to %d", len(f.Name), maxFileName)
		case names[name]:
			return im, all.errorAt(at, "file %q is given twice", f.Name)
		}
		names[name] = true
		size, what = size+len(f.Text), "a script with files"
		if at := path.Clean(f.Name); isImportable(at) {
			im.byPath[at] = append(im.byPath[at], i+1)
			im.byPath[path.Dir(at)] = append(im.byPath[path.Dir(at)], i+1)
		}
	}
	for _, found := range im.byPath {
		slices.SortFunc(found, func(a, b int) int { return cmp.Compare(all.parts[a].name, all.parts[b].name) })
	}
	if size > MaxSource {
		return im, all.errorAt(at, "%s of %d bytes: at most %d", what, size, MaxSource)
	}
	return im, nil
}

// name is the name of the file that is read, or "" for the script itself.
func (im *importer) name() string {
	if im.file == 0 {
		return ""
	}
	return im.files[im.file-1].Name
}

// isHeader reports whether the part that is read is a header of C.
func (im *importer) isHeader() bool { return strings.HasSuffix(im.name(), ".h") }

// read reads import "PATH"; and the files that it names. It reads no token after the semicolon: an attach point may
// follow.
func (im *importer) read(p *parser) error {
	if im.begun {
		return p.errorAt(p.tok.Span, "root imports must appear before probes and functions").hint("write imports before macros, maps and probes")
	}
	if err := p.advance(); err != nil {
		return err
	}
	name := p.tok
	if name.kind != tokString {
		return p.errorAt(name.Span, "syntax: expected string after 'import'")
	}
	if err := p.advance(); err != nil {
		return err
	}
	if !p.isOp(";") {
		return p.errorAt(p.tok.Span, "syntax: expected ';' after import")
	}
	to := importPath(im.name(), name.text)
	key := besideScript(im.all.name, to)
	if im.taken[key] && name.text != "" {
		return nil
	}
	found := im.byPath[to]
	if len(found) == 0 || name.text == "" {
		return missingImport(p, name, to)
	}
	for _, file := range found {
		if part := im.all.parts[file].name; !im.taken[part] {
			im.taken[part] = true
			if err := im.readFile(p, file); err != nil {
				return err
			}
		}
	}
	im.taken[key] = true // a folder is not searched again
	return nil
}

// readFile reads one file at this place of the script.
func (im *importer) readFile(p *parser, file int) error {
	source, lex, conditions, before := p.source, p.lexer, p.conditions, *im
	p.source = im.all.sourceOf(file)
	p.lexer, p.conditions = lexer{src: p.source, pos: p.source.from}, nil
	im.file = file // im.begun is false here
	err := p.program()
	p.source, p.lexer, p.conditions = source, lex, conditions
	im.file, im.begun = before.file, before.begun
	return err
}

// missingImport is the error for an import without a file, or nil if it needs none.
func missingImport(p *parser, name token, to string) error {
	base := path.Base(to)
	advice := refusedImport(to)
	switch {
	case name.text == stdlib:
		return nil
	case name.text == "":
		return p.errorAt(name.Span, "import without a path")
	case advice != "":
		return p.errorAt(name.Span, "import of %q is not supported", base).hint("%s", advice)
	case !isImportable(to) && strings.Trim(path.Ext(base), ".") != "":
		return p.errorAt(name.Span, "unknown import type: %q", base).hint("import a script (.bt), a header (.h), or a folder of them")
	}
	return p.errorAt(name.Span, "file %q was not given with the script", to).hint("guestprobe reads imported files itself; requests have them in the field files, with their paths from the script's folder")
}
