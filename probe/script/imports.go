package script

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// File is a file that a script imports, directly or through another one.
type File struct {
	Name string // its path from the script's folder, or an absolute one if it is imported by that
	Text string
}

// Limits of a script with its files.
const (
	MaxFiles  = 64
	MaxSource = 1 << 20 // bytes, in all

	maxFileName = 4096 // bytes
)

// Reader reads files for Gather. Paths begin where the path of the script begins.
type Reader struct {
	// Folder returns the names of the files in a folder, or isFolder = false for something else.
	Folder func(path string) (names []string, isFolder bool, err error)
	// File returns the text of a file, or an error if it has more than limit bytes.
	File func(path string, limit int) (string, error)
}

// Gather reads the files that a script imports, directly or through others. It leaves out imports that a compilation
// refuses by their names. The name of the script is its path; that of a script without a file has no slash.
func Gather(name, text string, r Reader) ([]File, error) {
	g := &gatherer{Reader: r, name: name, left: MaxSource - len(text), taken: map[string]bool{path.Clean(name): true}}
	err := g.importsOf("", text)
	return g.files, err
}

type gatherer struct {
	Reader
	name  string // of the script
	left  int    // bytes
	taken map[string]bool
	files []File
}

// importsOf reads the imports of a text, which is that of the file with that name, or with "" the script's.
func (g *gatherer) importsOf(file, text string) error {
	for _, imported := range Imports(text) {
		to := importPath(file, imported)
		if imported == "" || refusedImport(to) != "" {
			continue
		}
		first := len(g.files)
		if err := g.take(to, imported == stdlib); err != nil {
			from := g.name
			if file != "" {
				from = besideScript(g.name, file)
			}
			return fmt.Errorf("%s: import %q: %w", from, imported, err)
		}
		for _, f := range g.files[first:len(g.files):len(g.files)] {
			if strings.HasSuffix(f.Name, ".h") {
				continue
			}
			if err := g.importsOf(f.Name, f.Text); err != nil {
				return err
			}
		}
	}
	return nil
}

// take reads a file, or the files of a folder.
func (g *gatherer) take(to string, optional bool) error {
	at := besideScript(g.name, to)
	if g.taken[at] {
		return nil
	}
	g.taken[at] = true
	names, isFolder, err := g.Folder(at)
	switch {
	case optional && errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case isFolder:
		names = slices.DeleteFunc(slices.Sorted(slices.Values(names)), func(name string) bool { return !isImportable(name) })
		if len(names) == 0 {
			return errors.New("there is no .bt and no .h file in the folder")
		}
		for _, name := range names {
			in := path.Join(to, name)
			key := besideScript(g.name, in)
			if g.taken[key] {
				continue
			}
			g.taken[key] = true
			if err := g.read(in); err != nil {
				return err
			}
		}
		return nil
	case !isImportable(at):
		return nil
	}
	return g.read(to)
}

// read reads a file.
func (g *gatherer) read(to string) error {
	if len(g.files) == MaxFiles {
		return fmt.Errorf("more than %d files", MaxFiles)
	}
	text, err := g.File(besideScript(g.name, to), g.left)
	if err != nil {
		return err
	}
	g.left -= len(text)
	g.files = append(g.files, File{to, text})
	return nil
}

// stdlib is the import of bpftrace's own library, whose macros are part of the language here.
const stdlib = "stdlib"

// importPath is the path from the script's folder of what a file imports; from is the name of the file, or "" for the
// script itself.
func importPath(from, imported string) string {
	if path.IsAbs(imported) {
		return path.Clean(imported)
	}
	return path.Join(path.Dir(from), imported)
}

// besideScript is the path of a file, given from the folder of the script.
func besideScript(scriptName, to string) string {
	if path.IsAbs(to) {
		return path.Clean(to)
	}
	return path.Join(path.Dir(scriptName), to)
}

// isImportable reports whether a file with this name can be imported.
func isImportable(name string) bool {
	return strings.HasSuffix(name, ".bt") || strings.HasSuffix(name, ".h")
}

// refusedImport says what to do instead of the import of a file that is not supported by its name, or returns "".
func refusedImport(name string) string {
	switch path.Ext(name) {
	case ".c":
		return "C is not compiled here: write macros in a .bt file, and types in a .h file"
	case ".o":
		return "'guestprobe attach --program FILE.o' attaches compiled programs"
	}
	return ""
}

// Imports returns the paths of the imports of a script or of a file of it, as they are written: those outside of
// braces. The text may be anything; the time depends only on its length.
func Imports(text string) (all []string) {
	depth := 0
	for i := 0; i < len(text); {
		if next := skipOther(text, i); next > i {
			i = next
			continue
		}
		begin := i
		for i < len(text) && (isLetter(text[i]) || isDigit(text[i])) {
			i++
		}
		switch c := text[begin]; {
		case i > begin && depth == 0 && text[begin:i] == "import":
			for next := skipOther(text, i); next > i; next = skipOther(text, i) {
				i = next
			}
			end := endOfString(text, i)
			l := lexer{src: &source{text: text[i:end]}}
			if t, err := l.next(); err == nil && t.kind == tokString {
				all = append(all, t.text)
			}
			i = end
		case i > begin:
		case c == '"':
			i = endOfString(text, i)
		case c == '{':
			depth++
			i++
		case c == '}':
			depth--
			i++
		default:
			i++
		}
	}
	return all
}

// skipOther returns the position after the blank, the comment or the line for C's preprocessor that begins at i, or i.
func skipOther(text string, i int) int {
	line := func() int {
		if n := strings.IndexByte(text[i:], '\n'); n >= 0 {
			return i + n + 1
		}
		return len(text)
	}
	switch rest := text[i:]; {
	case rest == "":
	case strings.IndexByte(" \t\r\n\\", rest[0]) >= 0:
		return i + 1
	case strings.HasPrefix(rest, "//"), rest[0] == '#':
		return line()
	case strings.HasPrefix(rest, "/*"):
		n := strings.Index(rest[2:], "*/")
		if n < 0 {
			return len(text)
		}
		return i + n + 4
	}
	return i
}

// endOfString returns the position after the string that begins at i, if one does; it ends at the end of the line at the latest.
func endOfString(text string, i int) int {
	if i >= len(text) || text[i] != '"' {
		return i
	}
	for i++; i < len(text) && text[i] != '\n'; i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return min(i, len(text))
}
