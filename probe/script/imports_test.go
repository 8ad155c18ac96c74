package script

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"testing"
)

// textFiles makes files from a text in txtar's form: -- NAME --, and the lines below it.
func textFiles(text string) (files []File) {
	for _, part := range strings.Split(text, "-- ")[1:] {
		name, body, _ := strings.Cut(part, " --\n")
		files = append(files, File{name, body})
	}
	return files
}

// TestImports: a script has the macros, maps, types and probes of the files that it imports.
func TestImports(t *testing.T) {
	for _, c := range []struct{ name, text, files, want string }{
		{"macro", `import "a.bt"; begin { print(twice(3)); }`, "-- a.bt --\nmacro twice(x) { x * 2 }\n", "6"},
		{"shebang", "#!/usr/bin/guestprobe run\nimport \"a.bt\"; begin { print(twice(3)); }", "-- a.bt --\n#!/usr/bin/bpftrace\nmacro twice(x) { x * 2 }", "6"},
		{"config before and after", `config = { max_strlen = 12 } import "a.bt"; config = { print_maps_on_exit = 0 } begin { @a[1] = say(); print(say()); }`, "-- a.bt --\nmacro say() { \"0123456789abcdef\" }\n", "0123456789abcdef"},
		{"probes of imports first", `import "b.bt"; import "a.bt"; begin { print("own"); }`,
			"-- a.bt --\nbegin { print(\"a\"); }\n-- b.bt --\nimport \"c.bt\";\nbegin { print(\"b1\"); } begin { print(\"b2\"); }\n-- c.bt --\nbegin { print(\"c\"); }\n", "c\nb1\nb2\na\nown"},
		{"end, too", `import "a.bt"; end { print("own"); } begin { exit(); }`, "-- a.bt --\nend { print(\"a\"); }\n", "a\nown"},
		{"once", `import "a.bt"; import "./a.bt"; import "lib/../a.bt"; begin { print(2); }`, "-- a.bt --\nbegin { print(1); }\n", "1\n2"},
		{"cycle", `import "a.bt"; begin { print(3); }`, "-- a.bt --\nimport \"b.bt\"; begin { print(2); }\n-- b.bt --\nimport \"a.bt\"; import \"main.bt\"; begin { print(1); }\n-- main.bt --\nbegin { print(\"twice\"); }\n", "1\n2\n3"},
		{"cycle of the script", `import "a.bt"; begin { print(2); }`, "-- a.bt --\nimport \"main.bt\"; begin { print(1); }\n", "1\n2"},
		{"relative to the file", `import "lib/a.bt"; begin { print(two()); }`, "-- lib/a.bt --\nimport \"b.bt\";\nimport \"../c.bt\";\n-- lib/b.bt --\nmacro one() { 1 }\n-- c.bt --\nmacro two() { one() + 1 }\n-- b.bt --\nnothing\n", "2"},
		{"absolute", `import "/lib/a.bt"; begin { print(one()); }`, "-- /lib/a.bt --\nimport \"b.bt\";\n-- /lib/b.bt --\nmacro one() { 1 }\n", "1"},
		{"folder", `import "lib"; begin { print((one(), sizeof(struct two))); }`, "-- lib/b.bt --\nbegin { print(\"b\"); }\n-- lib/a.bt --\nmacro one() { 1 } begin { print(\"a\"); }\n-- lib/t.h --\nstruct two { int a[2]; };\n-- lib/README --\nnothing\n-- lib/more/c.bt --\nnothing\n", "a\nb\n(1, 8)"},
		{"the script's folder", `import "."; begin { print(2); }`, "-- a.bt --\nbegin { print(1); }\n-- main.bt --\nnothing\n-- lib/b.bt --\nnothing\n", "1\n2"},
		{"a name of a type for a folder", `import "lib.d/"; begin { print(2); }`, "-- lib.d/a.bt --\nbegin { print(1); }\n", "1\n2"},
		{"header", `import "t.h"; begin { print((SIZE, sizeof(struct two), TWO, (uint8)((small)257))); }`,
			"-- t.h --\n#ifndef T_H\n#define T_H\n#pragma once\n#define SIZE 7\nstruct two { int a[2]; };\nenum { ONE = 1, TWO };\ntypedef unsigned char small;\n#endif\n-- not/read.bt --\nnothing", "(7, 8, TWO, 1)"},
		{"a line without an end", `import "t.h"; import "a.bt"; begin { print(SIZE); }`, "-- t.h --\n#define SIZE 7\n-- a.bt --\n#define OTHER 8", "7"},
		{"the library", `import "stdlib"; begin { print(1); }`, "", "1"},
		{"a library of one's own", `import "stdlib"; begin { print(one()); }`, "-- stdlib/a.bt --\nmacro one() { 1 }", "1"},
		{"join and getopt", `import "a.bt"; begin { print(1); }`, "-- a.bt --\nbegin { print(getopt(\"n\", 5)); }", "7\n1"},
		{"maps", `import "a.bt"; begin { @a[1] = 1; @a[2] = 2; }`, "-- a.bt --\nlet @a = lruhash(5);\nbegin { @a[3] = 3; }", "@a[1]: 1\n@a[2]: 2\n@a[3]: 3"},
		{"after types", "#define N 3\nstruct a { int x[3]; }\nimport \"a.bt\"; begin { }", "-- a.bt --\nbegin { print((N, sizeof(struct a))); }", "(3, 12)"},
		{"no probes of its own", `import "a.bt";`, "-- a.bt --\nbegin { print(1); }", "1"},
		{"nothing", `import "a.bt"; import "b.h"; begin { print(1); }`, "-- a.bt --\n-- b.h --\n", "1"},
	} {
		o := Options{Name: "main.bt", Import: textFiles(c.files)}
		if strings.Contains(c.files, "getopt") {
			o.Params = []string{"--n=7"}
		}
		r, err := runWith(t, target, c.text, o, false, 0)
		if got := strings.Trim(r.out, "\n"); err != nil || got != c.want || r.warnings != "" {
			t.Errorf("%s: output %q, want %q; %v %s", c.name, got, c.want, err, r.warnings)
		}
	}
}

// TestImportErrors: errors about imports and in imported files name the file, and the place in it.
func TestImportErrors(t *testing.T) {
	many := make([]File, MaxFiles+1)
	for i := range many {
		many[i].Name = fmt.Sprintf("%d.bt", i)
	}
	for _, c := range []struct{ text, files, want string }{
		{`import "a.bt"; begin { }`, "-- a.bt --\n// x\nmacro f() {\n  @x = 1 +;\n}\n", "dir/a.bt:3:11-12: ERROR: syntax error, unexpected \";\""},
		{`import "a.bt"; begin { }`, "-- a.bt --\n\n  \"", "dir/a.bt:2:3-4: ERROR: string without end\n  \"\n  ~"},
		{`import "a.bt"; begin { }`, "-- a.bt --\nbegin { print(1)", "dir/a.bt:1:17-18: ERROR: syntax error, unexpected end of the script"},
		{`import "a.bt"; begin { }`, "-- a.bt --\n/*", "dir/a.bt:1:1-3: ERROR: comment without end"},
		{`import "a.bt"; begin { }`, "-- a.bt --\n#if 1\n", "dir/a.bt:1:1-6: ERROR: #if without #endif"},
		{`import "a.bt"; begin { }`, "-- a.bt --\n#if 0\n-- b.bt --\n#endif\n", "dir/a.bt:1:1-6: ERROR: #if without #endif"},
		{"#if 1\nimport \"a.bt\"; begin { }", "-- a.bt --\n#endif\n", "dir/a.bt:1:1-7: ERROR: #endif without #if"},
		{"begin { print(1);", "-- a.bt --\n}\n", "dir/main.bt:1:18-19: ERROR: syntax error, unexpected end of the script"},
		{`import "a.bt"; begin { @x = f(1); }`, "-- a.bt --\nmacro f(x) { x + nothing }\n", "dir/a.bt:1:18-25: ERROR: Unknown identifier: 'nothing'\nmacro f(x) { x + nothing }\n                 ~~~~~~~\ndir/main.bt:1:29-33: ERROR: expanded from\nimport \"a.bt\"; begin { @x = f(1); }"},
		{`import "a.bt"; begin { nothing(); }`, "-- a.bt --\nmacro f(x) { x }\n", "dir/main.bt:1:24-33: ERROR: Unknown function: 'nothing'"},
		{`import "t.h"; begin { }`, "-- t.h --\n\n#define A \"x\nstruct a { int x; };\n", "dir/t.h:2:11-12: ERROR: string without end\n#define A \"x\n          ~"},
		{`import "t.h"; begin { }`, "-- t.h --\n\n#define A \"x", "dir/t.h:2:11-12: ERROR: string without end\n#define A \"x\n          ~"},
		{`import "lib/a.bt"; begin { }`, "-- lib/a.bt --\nkprobe:vfs_read { @ = hist(1); @ = 2; }\n", "dir/lib/a.bt:1:32-37: ERROR: Type mismatch for @"},
		{`import "a.bt"; macro f() { 1 } begin { }`, "-- a.bt --\nmacro f() { 2 }\n", "dir/main.bt:1:22-23: ERROR: Redefinition of macro: f"},
		{`import "a.bt"; import "b.bt"; begin { }`, "-- a.bt --\nmacro f() { 2 }\n-- b.bt --\n\nmacro f() { 2 }\n", "dir/b.bt:2:7-8: ERROR: Redefinition of macro: f"},
		{"import \"t.h\";\n#define A 2\nbegin { }", "-- t.h --\n#define A 1\n", "dir/main.bt:2:1-12: ERROR: redefinition of 'A'"},
		{`import "a.bt"; begin { }`, "-- a.bt --\n config = { max_map_keys = 5 }\n", "dir/a.bt:1:2-8: ERROR: invalid `config` within import"},
		{`import "a.bt"; begin { }`, "-- a.bt --\nimport \"b.bt\"; import \"c\";\n-- b.bt --\n", "dir/a.bt:1:23-26: ERROR: file \"c\" was not given with the script"},
		{`import "lib/a.bt"; begin { }`, "-- lib/a.bt --\nimport \"b.bt\";\n-- b.bt --\n", "dir/lib/a.bt:1:8-14: ERROR: file \"lib/b.bt\" was not given with the script\nimport \"b.bt\";\n       ~~~~~~\nHINT: guestprobe reads imported files itself; requests have them in the field files, with their paths from the script's folder"},
		{`import "lib/a.bpf.c"; begin { }`, "-- lib/a.bpf.c --\n", "dir/main.bt:1:8-21: ERROR: import of \"a.bpf.c\" is not supported\nimport \"lib/a.bpf.c\"; begin { }\n       ~~~~~~~~~~~~~\nHINT: C is not compiled here: write macros in a .bt file, and types in a .h file"},
		{`import "a.bpf.o"; begin { }`, "", "HINT: 'guestprobe attach --program FILE.o' attaches compiled programs"},
		{`import "a.txt"; begin { }`, "-- a.txt --\n", "ERROR: unknown import type: \"a.txt\"\nimport \"a.txt\"; begin { }\n       ~~~~~~~\nHINT: import a script (.bt), a header (.h), or a folder of them"},
		{`import ""; begin { }`, "-- a.bt --\n", "dir/main.bt:1:8-10: ERROR: import without a path"},
		{`import ".."; begin { }`, "-- a.bt --\n", "ERROR: file \"..\" was not given"},
		{`begin { } import "a.bt";`, "-- a.bt --\n", "dir/main.bt:1:11-17: ERROR: root imports must appear before probes and functions"},
		{`macro f() { } import "a.bt"; begin { }`, "-- a.bt --\n", "root imports must appear before probes and functions"},
		{`let @a = hash(1); import "a.bt"; begin { }`, "-- a.bt --\n", "root imports must appear before probes and functions"},
		{`import "a.bt"; begin { } import "b.bt";`, "-- a.bt --\n-- b.bt --\n", "root imports must appear before probes and functions"},
		{`import "a.bt"; begin { }`, "-- a.bt --\nmacro f() { } import \"b.bt\";\n-- b.bt --\n", "dir/a.bt:1:15-21: ERROR: root imports must appear before probes and functions"},
		{`import 5; begin { }`, "", "dir/main.bt:1:8-9: ERROR: syntax: expected string after 'import'"},
		{`import "a.bt" begin { }`, "-- a.bt --\n", "dir/main.bt:1:15-20: ERROR: syntax: expected ';' after import"},
		{`begin { import "t.h"; }`, "-- t.h --\n", "dir/main.bt:1:9-15: ERROR: import in a block is not supported"},
		{`import "t.h"; begin { }`, "-- t.h --\nmacro f() { }", "dir/t.h:1:1-6: ERROR: \"macro\" in a header"},
		{`import "t.h"; begin { }`, "-- t.h --\nint f(int x);", "dir/t.h:1:1-4: ERROR: \"int\" in a header"},
		{`import "t.h"; begin { }`, "-- t.h --\nimport \"a.bt\";", "dir/t.h:1:1-7: ERROR: \"import\" in a header"},
		{"#pragma once\nbegin { }", "", "#pragma is not supported"},
		{`import "a.bt"; begin { }`, "-- a.bt --\n-- ./a.bt --\n", "file \"./a.bt\" is given twice"},
		{`begin { }`, "--  --\n", "the name of a file has 0 bytes: want 1 to 4096"},
		{`begin { }`, "-- " + strings.Repeat("x", 4097) + " --\n", "the name of a file has 4097 bytes"},
		{`import "a.bt"; begin { }`, "-- a.bt --\n" + strings.Repeat("\n", MaxSource-23), fmt.Sprintf("dir/main.bt:1:1-2: ERROR: a script with files of %d bytes: at most %d", MaxSource+1, MaxSource)},
		{`import "a.bt";`, "-- a.bt --\n", "dir/main.bt:1:1-2: ERROR: no probes in the script"},
	} {
		_, err := Compile(c.text, target, Options{Name: "dir/main.bt", Import: textFiles(c.files), CPUs: 1})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s\nwith %.200q: %v\nwant %s", c.text, c.files, err, c.want)
		}
	}
	if _, err := Compile("begin { }", target, Options{Import: many, CPUs: 1}); err == nil || !strings.Contains(err.Error(), "a script with 65 files: at most 64") {
		t.Error(err)
	}
	if _, err := Compile("begin { }", target, Options{Import: many[1:], CPUs: 1}); err != nil {
		t.Error(err)
	}
	if err := Check("main.bt", `import "a.bt"; kprobe:vfs_read { print(N); }`, textFiles("-- a.bt --\n#define N 1\n"), nil, kernelTypes); err != nil {
		t.Error(err)
	}
}

// TestImportedNotes: notes, warnings and advice name the file of their place.
func TestImportedNotes(t *testing.T) {
	files := textFiles("-- a.bt --\nmacro deep(x) { x + \"s\" }\n-- b.bt --\nbegin { @b = 1; if (@b == 0) { 5; } }\nlet @unused = hash(7);\n")
	s, err := Compile("config = { log_size = 5 }\nimport \"b.bt\"; begin { }", target, Options{Import: files, CPUs: 1})
	if err != nil || !slices.Equal(s.Notes, []string{"stdin:1:12: log_size has no effect here"}) || len(s.Warnings) == 0 || !strings.HasPrefix(s.Warnings[len(s.Warnings)-1], "b.bt:2:5-12: WARNING: Unused map: @unused") {
		t.Errorf("%v: notes %q, warnings %q", err, s.Notes, s.Warnings)
	}
	_, err = Compile("import \"a.bt\";\nmacro mid(x) { deep(x) }\nbegin { print(mid(1)); }", target, Options{Import: files, CPUs: 1})
	var wrong *Error
	if !errors.As(err, &wrong) || wrong.Name != "a.bt" || !strings.HasPrefix(wrong.Advice(), "expanded from stdin:2:16-23; expanded from stdin:3:15-21") {
		t.Errorf("%v, advice %q", err, wrong.Advice())
	}
}

// TestImportList: Imports finds what the compiler reads.
func TestImportList(t *testing.T) {
	for _, c := range []struct {
		text string
		want []string
	}{
		{`import "a"; import "b.bt"; begin { }`, []string{"a", "b.bt"}},
		{"#!/usr/bin/x import \"no\";\n#include \"import\"\n#if 0\nlet's \"\n#endif\nconfig = { a = \"}\"; b = 1 }\nstruct a { int x; } __attribute__((packed)) import/*x*/\n// y\n\"a\" ;", []string{"a"}},
		{`// import "a";` + "\n/* import \"b\"; */ import\t\"c\\x41\";", []string{"cA"}},
		{`begin { import "a"; }`, nil},
		{`begin { print("import \"a\""); } importer "b"; reimport "b"; import5 "b"; 5import "b"`, nil},
		{`import "a`, nil},
		{"import \"a\n\"; import \"b\\", nil},
		{`import "a\"b"; import "c";`, []string{`a"b`, "c"}},
		{`import "\`, nil},
		{`import`, nil},
		{`import a; import "b";`, []string{"b"}},
		{`/*`, nil}, {`"\`, nil}, {`import /*`, nil}, {`}import "a";`, nil},
	} {
		if got := Imports(c.text); !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, want %q", c.text, got, c.want)
		}
	}
	// Parts that a reader could search to the end, again and again: the test would take hours.
	for _, part := range []string{"\"", "/*", "import \"\n", "import /*", "import\n", "//", "#", "{\"", "\\\"", "/* */import", "\"\n"} {
		if got := Imports(strings.Repeat(part, 16*MaxSource/len(part))); len(got) != 0 {
			t.Errorf("%q, repeated: %d imports", part, len(got))
		}
	}
}

// mapReader reads files from a map.
func mapReader(files map[string]string) Reader {
	return Reader{
		Folder: func(at string) (names []string, isFolder bool, err error) {
			for f := range files {
				if path.Dir(f) == at {
					names, isFolder = append(names, path.Base(f)), true
				}
			}
			if _, ok := files[at]; !ok && !isFolder {
				err = fs.ErrNotExist
			}
			return names, isFolder, err
		},
		File: func(at string, limit int) (string, error) {
			if len(files[at]) > limit {
				return "", fmt.Errorf("more than %d bytes", limit)
			}
			return files[at], nil
		},
	}
}

// TestGather: what Gather reads is enough to compile the script.
func TestGather(t *testing.T) {
	disk := map[string]string{
		"d/main.bt": "nothing", "d/a.bt": `import "lib"; import "../e/e.bt"; import "main.bt";`, "d/lib/z.bt": `import "t.h";`, "d/lib/t.h": `import "no";`, "d/lib/more": "no",
		"d/lib/u.h": "", "e/e.bt": `import "/abs/f.bt"; import "../d/a.bt"; import "x.bpf.c"; import "y.bpf.o"; import "stdlib"; import "f.txt"; import "";`, "e/f.txt": "no", "/abs/f.bt": "",
		"d/lib/sub/x.bt": "no",
	}
	names := func(files []File) (all []string) {
		for _, f := range files {
			all = append(all, f.Name)
		}
		return all
	}
	files, err := Gather("d/main.bt", `import "a.bt"; import "a.bt"; begin { }`, mapReader(disk))
	if got := names(files); err != nil || !slices.Equal(got, []string{"a.bt", "lib/t.h", "lib/u.h", "lib/z.bt", "../e/e.bt", "/abs/f.bt"}) {
		t.Errorf("%q, %v", got, err)
	}
	if files[3].Text != disk["d/lib/z.bt"] {
		t.Errorf("text %q", files[3].Text)
	}
	if files, err := Gather("d/main.bt", `import "lib/u.h"; import "lib"; import "."; begin { }`, mapReader(map[string]string{"d/main.bt": "", "d/lib/u.h": "", "d/lib/v.h": ""})); err != nil || !slices.Equal(names(files), []string{"lib/u.h", "lib/v.h"}) {
		t.Errorf("%q, %v", names(files), err)
	}
	for i := range MaxFiles + 1 {
		disk[fmt.Sprintf("many/%d.h", i)] = "//"
	}
	disk["large/a.bt"], disk["large/b.bt"], disk["empty/x.txt"] = strings.Repeat("\n", MaxSource-30), strings.Repeat("\n", 20), ""
	for _, c := range []struct{ text, want string }{
		{`import "no.bt";`, `d/main.bt: import "no.bt": file does not exist`},
		{`import "lib/z.bt"; import "no";`, `d/main.bt: import "no": file does not exist`},
		{`import "../many";`, `d/main.bt: import "../many": more than 64 files`},
		{`import "../large";`, `d/main.bt: import "../large": more than 12 bytes`},
		{`import "../empty";`, `d/main.bt: import "../empty": there is no .bt and no .h file in the folder`},
	} {
		if _, err := Gather("d/main.bt", c.text, mapReader(disk)); err == nil || err.Error() != c.want {
			t.Errorf("%s: %v, want %s", c.text, err, c.want)
		}
	}
	disk["d/lib/z.bt"] = `import "no.bt";`
	if _, err := Gather("d/main.bt", `import "lib";`, mapReader(disk)); err == nil || err.Error() != `d/lib/z.bt: import "no.bt": file does not exist` {
		t.Error(err)
	}
}

// FuzzImports: whatever the text and its files are, an error points into one of them, and Imports finds each import
// that the compiler reads.
func FuzzImports(f *testing.F) {
	for _, s := range []string{
		"import \"a.bt\"; begin { print(one()); }\x00macro one() { 1 }\x00#define A 1",
		"import \".\"; begin { }\x00import \"b.h\"; begin { }\x00struct a { int x; }\n#if 1\n#endif",
		"#if 0\n#else\nimport \"b.h\";\n#endif\nbegin { print(A); }\x00\x00#define A 1 +",
		"import \"a.bt\"; begin { @x = f(1); }\x00\n macro f(x) { x + y }\x00",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		texts := bytes.SplitN(b, []byte{0}, 3)
		text, a, h := string(texts[0]), "", ""
		if len(texts) > 1 {
			a = string(texts[1])
		}
		if len(texts) > 2 {
			h = string(texts[2])
		}
		found := Imports(text)
		if _, err := Compile(text, target, Options{CPUs: 1, Import: []File{{"a.bt", a}, {"b.h", h}}}); err != nil {
			var wrong *Error
			if !errors.As(err, &wrong) {
				t.Fatalf("%q: %v", b, err)
			}
			in, ok := map[string]string{"stdin": text, "a.bt": a, "b.h": h}[wrong.Name]
			if lines := strings.Split(in, "\n"); !ok || wrong.Line < 1 || wrong.Line > len(lines) || wrong.Col < 1 || wrong.Col > len(lines[wrong.Line-1])+1 {
				t.Fatalf("%q: error %+v", b, wrong)
			}
			if strings.Contains(wrong.Message, "was not given") && wrong.Name == "stdin" && !strings.Contains(text, "#") {
				name := strings.TrimSuffix(strings.TrimPrefix(wrong.Message, "file "), " was not given with the script")
				if !slices.ContainsFunc(found, func(p string) bool { return fmt.Sprintf("%q", importPath("", p)) == name }) {
					t.Fatalf("%q: %s, and Imports has found %q", b, wrong.Message, found)
				}
			}
		}
	})
}
